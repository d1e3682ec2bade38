#include "tensor/workspace.h"

#include <algorithm>

#include "base/error.h"

namespace braid {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Workspace::Workspace(size_t capacity_bytes, Device device) : buffer_(capacity_bytes, device) {}

TensorView Workspace::take(DType dtype, const Shape& shape) {
  const size_t size = static_cast<size_t>(shape.num_elements()) * dtype_bytes(dtype);
  const size_t padded = (size + kAlignment - 1) / kAlignment * kAlignment;
  if (padded > buffer_.size_bytes() - used_bytes_) {
    throw Error(
        "workspace: {} bytes for a {} tensor of shape {} do not fit: {} of {} bytes are in use; "
        "use a smaller --batch-tokens",
        size, dtype_name(dtype), to_string(shape), used_bytes_, buffer_.size_bytes());
  }
  TensorView view(buffer_.data() + used_bytes_, dtype, shape, buffer_.device());
  used_bytes_ += padded;
  high_water_bytes_ = std::max(high_water_bytes_, used_bytes_);
  return view;
}

}  // namespace braid

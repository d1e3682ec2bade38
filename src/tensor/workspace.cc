#include "tensor/workspace.h"

#include "base/error.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Workspace::Workspace(size_t capacity_bytes, Device device)
    : device_(device), capacity_bytes_(capacity_bytes) {
  if (device.is_cpu()) {
    buffer_ = Buffer(capacity_bytes, device);
    data_ = buffer_.data();
  } else {
    device_memory_ = cuda::reserve(capacity_bytes, device.index);
    data_ = device_memory_->data();
  }
}

Workspace::~Workspace() = default;

TensorView Workspace::take(DType dtype, const Shape& shape) {
  const size_t size = static_cast<size_t>(shape.num_elements()) * dtype_bytes(dtype);
  const size_t padded = (size + kAlignment - 1) / kAlignment * kAlignment;
  if (padded > capacity_bytes_ - used_bytes_) {
    throw Error(
        "workspace: {} bytes for a {} tensor of shape {} do not fit: {} of {} bytes are in use; "
        "use a smaller --batch-tokens",
        size, dtype_name(dtype), to_string(shape), used_bytes_, capacity_bytes_);
  }
  TensorView view(data_ + used_bytes_, dtype, shape, device_);
  used_bytes_ += padded;
  if (used_bytes_ > high_water_bytes_) {
    high_water_bytes_ = used_bytes_;
    if (device_memory_) device_memory_->commit(high_water_bytes_);
  }
  return view;
}

}  // namespace braid

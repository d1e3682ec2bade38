#include "tensor/host_copy.h"

#include "tensor/cuda/stream_state.h"

namespace braid {

HostCopy::~HostCopy() {
  if (data_ != nullptr) cuda::release_pinned(data_);
}

TensorView HostCopy::fetch(const Stream& stream, const TensorView& view) {
  const TensorView copy = start(stream, view);
  if (!view.device().is_cpu() && !view.empty()) stream.synchronize();
  return copy;
}

TensorView HostCopy::start(const Stream& stream, const TensorView& view) {
  if (view.device().is_cpu() || view.empty()) return view;
  const size_t size =
      static_cast<size_t>(view.num_elements()) * static_cast<size_t>(dtype_bytes(view.dtype()));
  if (size > capacity_bytes_) {
    if (data_ != nullptr) cuda::release_pinned(data_);
    data_ = nullptr;
    data_ = cuda::allocate_pinned(size);
    capacity_bytes_ = size;
  }
  const TensorView copy(data_, view.dtype(), view.shape());
  if (view.contiguous()) {
    cuda::copy_to_host_async(stream.cuda(), data_, view.raw(), size);
  } else {
    const size_t row_bytes = size / static_cast<size_t>(view.dim(0));
    const size_t stride = static_cast<size_t>(view.row_stride()) * dtype_bytes(view.dtype());
    for (int64_t row = 0; row < view.dim(0); ++row) {
      cuda::copy_to_host_async(stream.cuda(), data_ + row * row_bytes,
                               static_cast<const std::byte*>(view.raw()) + row * stride, row_bytes);
    }
  }
  return copy;
}

}  // namespace braid

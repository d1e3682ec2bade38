#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/thread_pool.h"
#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/cuda/pinned_upload.h"

namespace braid::cuda {
namespace {

constexpr size_t kBufferBytes = size_t{16} << 20;
constexpr size_t kPartBytes = size_t{1} << 20;  // of a thread at a time
constexpr int kBuffers = 3;

class ThreadedUpload : public PinnedUpload {
 public:
  explicit ThreadedUpload(int device) : device_(device) {
    if (device < 0 || device >= num_devices()) no_such_device(device, num_devices());
    BRAID_CUDA_CHECK(cudaSetDevice(device));
    BRAID_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (Staging& staging : staging_) {
      BRAID_CUDA_CHECK(cudaMallocHost(&staging.data, kBufferBytes));
      BRAID_CUDA_CHECK(cudaEventCreateWithFlags(&staging.sent, cudaEventDisableTiming));
    }
  }

  ~ThreadedUpload() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    for (Staging& staging : staging_) {
      cudaEventDestroy(staging.sent);
      cudaFreeHost(staging.data);
    }
    cudaStreamDestroy(stream_);
  }

  void copy(std::byte* target, const void* source, size_t size_bytes) override {
    const auto* from = static_cast<const std::byte*>(source);
    BRAID_CUDA_CHECK(cudaSetDevice(device_));
    while (size_bytes > 0) {
      Staging& staging = staging_[next_++ % kBuffers];
      const size_t bytes = std::min(size_bytes, kBufferBytes);
      BRAID_CUDA_CHECK(cudaEventSynchronize(staging.sent));
      const auto parts = static_cast<int64_t>((bytes + kPartBytes - 1) / kPartBytes);
      threads_.parallel_for(parts, 1, [&](int64_t begin, int64_t end, int) {
        const size_t first = static_cast<size_t>(begin) * kPartBytes;
        const size_t last = std::min(bytes, static_cast<size_t>(end) * kPartBytes);
        std::memcpy(staging.data + first, from + first, last - first);
      });
      BRAID_CUDA_CHECK(
          cudaMemcpyAsync(target, staging.data, bytes, cudaMemcpyHostToDevice, stream_));
      BRAID_CUDA_CHECK(cudaEventRecord(staging.sent, stream_));
      target += bytes;
      from += bytes;
      size_bytes -= bytes;
    }
  }

  void finish() override { BRAID_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  struct Staging {
    std::byte* data = nullptr;
    cudaEvent_t sent = nullptr;
  };

  int device_;
  ThreadPool threads_;
  cudaStream_t stream_ = nullptr;
  std::array<Staging, kBuffers> staging_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<PinnedUpload> make_pinned_upload(int device) {
  return std::make_unique<ThreadedUpload>(device);
}

}  // namespace braid::cuda

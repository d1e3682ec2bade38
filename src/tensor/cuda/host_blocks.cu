#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "tensor/buffer.h"
#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/cuda/host_blocks.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {
namespace {

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  BRAID_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

class PinnedBlocks : public HostBlocks {
 public:
  PinnedBlocks(const std::vector<size_t>& sizes, int num_slots, int device) : device_(device) {
    BRAID_CHECK(num_slots > 0, "no slots");
    if (device < 0 || device >= num_devices()) no_such_device(device, num_devices());
    BRAID_CUDA_CHECK(cudaSetDevice(device));
    BRAID_CUDA_CHECK(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
    begun_ = make_event();
    size_t largest = 0;
    for (const size_t size : sizes) {
      Block& block = blocks_.emplace_back();
      block.size = size;
      block.here = make_event();
      block.done = make_event();
      BRAID_CUDA_CHECK(cudaMallocHost(&block.host, std::max<size_t>(size, 1)));
      largest = std::max(largest, size);
    }
    for (int i = 0; i < num_slots; ++i)
      slots_.emplace_back(largest, Device{DeviceKind::kCuda, device});
  }

  ~PinnedBlocks() override {
    cudaSetDevice(device_);
    cudaDeviceSynchronize();
    for (Block& block : blocks_) {
      cudaFreeHost(block.host);
      cudaEventDestroy(block.here);
      cudaEventDestroy(block.done);
    }
    cudaEventDestroy(begun_);
    cudaStreamDestroy(copies_);
  }

  std::byte* host(int block) const override { return blocks_.at(block).host; }
  std::byte* slot(int block) const override { return slots_[block % slots_.size()].data(); }

  void begin(StreamState& stream, int first, int end) override {
    end_ = end;
    // The slots may still be read by what is queued.
    BRAID_CUDA_CHECK(cudaEventRecord(begun_, stream.handle()));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(copies_, begun_, 0));
    const int num_slots = static_cast<int>(slots_.size());
    for (int block = first; block < std::min(end, first + num_slots); ++block) copy(block);
  }

  void wait(StreamState& stream, int block) override {
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(stream.handle(), blocks_.at(block).here, 0));
  }

  void release(StreamState& stream, int block) override {
    const int next = block + static_cast<int>(slots_.size());
    if (next >= end_) return;
    BRAID_CUDA_CHECK(cudaEventRecord(blocks_.at(block).done, stream.handle()));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(copies_, blocks_.at(block).done, 0));
    copy(next);
  }

 private:
  struct Block {
    std::byte* host = nullptr;
    size_t size = 0;
    cudaEvent_t here = nullptr, done = nullptr;
  };

  void copy(int block) {
    Block& from = blocks_.at(block);
    BRAID_CUDA_CHECK(
        cudaMemcpyAsync(slot(block), from.host, from.size, cudaMemcpyHostToDevice, copies_));
    BRAID_CUDA_CHECK(cudaEventRecord(from.here, copies_));
  }

  int device_;
  cudaStream_t copies_ = nullptr;
  cudaEvent_t begun_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<Buffer> slots_;
  int end_ = 0;  // of the pass
};

}  // namespace

std::unique_ptr<HostBlocks> make_host_blocks(const std::vector<size_t>& sizes, int num_slots,
                                             int device) {
  return std::make_unique<PinnedBlocks>(sizes, num_slots, device);
}

}  // namespace braid::cuda

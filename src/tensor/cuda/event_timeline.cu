#include <atomic>
#include <cstdint>
#include <vector>

#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/event_timeline.h"

namespace braid::cuda {
namespace {

// Beyond this, what is held begins: the host may be waiting for it in a place that does not know.
constexpr uint64_t kLongestHoldNs = 20'000'000;
constexpr int kMarksToTime = 65;

__device__ uint64_t device_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Ends once the host has opened the gate of this number, in memory of the host's.
__global__ void gate(const volatile uint32_t* opened, uint32_t number) {
  const uint64_t begin = device_ns();
  while (static_cast<int32_t>(*opened - number) < 0 && device_ns() - begin < kLongestHoldNs) {
    __nanosleep(200);
  }
}

class EventTimeline : public DeviceTimeline {
 public:
  explicit EventTimeline(StreamState& stream) : state_(stream), stream_(stream.handle()) {
    BRAID_CUDA_CHECK(cudaSetDevice(stream.device()));
    opened_ = reinterpret_cast<uint32_t*>(allocate_pinned(sizeof(uint32_t)));
    *opened_ = 0;
    // Event 0 is the origin that the others are measured from.
    add_event();
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream_));
    BRAID_CUDA_CHECK(cudaEventRecord(events_[0], stream_));
    BRAID_CUDA_CHECK(cudaEventSynchronize(events_[0]));
    origin_ = Clock::now();
    // Twice: the first time brings the kernel's code.
    for (int i = 0; i < 2; ++i) time_marks();
  }
  ~EventTimeline() override {
    open(held_);
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    release_pinned(reinterpret_cast<std::byte*>(opened_));
  }

  int mark() override {
    if (used_ == events_.size()) add_event();
    BRAID_CUDA_CHECK(cudaEventRecord(events_[used_], stream_));
    return static_cast<int>(used_++) - 1;
  }

  void hold() override {
    gate<<<1, 1, 0, stream_>>>(opened_, held_ + 1);
    BRAID_CUDA_CHECK(cudaGetLastError());
    open(held_++);
  }
  void release() override { open(held_); }

  std::vector<Clock::time_point> read() override {
    release();
    std::vector<Clock::time_point> times;
    if (used_ == 1) return times;
    BRAID_CUDA_CHECK(cudaEventSynchronize(events_[used_ - 1]));
    times.reserve(used_ - 1);
    for (size_t i = 1; i < used_; ++i) {
      float ms = 0;
      BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, events_[0], events_[i]));
      times.push_back(origin_ + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double, std::milli>(ms)));
    }
    // Of long times single milliseconds would be lost in the float.
    std::swap(events_[0], events_[used_ - 1]);
    origin_ = times.back();
    used_ = 1;
    return times;
  }
  void clear() noexcept override {
    open(held_);
    used_ = 1;
  }

  int64_t num_ops() const override { return num_finished_ops(state_); }
  double mark_seconds() const override { return mark_seconds_; }

 private:
  void add_event() {
    events_.push_back(nullptr);
    BRAID_CUDA_CHECK(cudaEventCreate(&events_.back()));
  }
  void open(uint32_t number) noexcept {
    std::atomic_ref<uint32_t>(*opened_).store(number, std::memory_order_release);
  }
  void time_marks() {
    hold();
    for (int i = 0; i < kMarksToTime; ++i) mark();
    const std::vector<Clock::time_point> times = read();
    mark_seconds_ =
        std::chrono::duration<double>(times.back() - times.front()).count() / (kMarksToTime - 1);
  }

  StreamState& state_;
  cudaStream_t stream_;
  uint32_t* opened_ = nullptr;  // pinned; gates up to this number are open
  uint32_t held_ = 0;           // the last gate
  std::vector<cudaEvent_t> events_;
  size_t used_ = 1;
  Clock::time_point origin_;
  double mark_seconds_ = 0;
};

}  // namespace

std::unique_ptr<DeviceTimeline> make_event_timeline(StreamState& stream) {
  return std::make_unique<EventTimeline>(stream);
}

}  // namespace braid::cuda

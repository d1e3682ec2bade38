#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/cuda/event_timeline.h"
#include "tensor/cuda/large_upload.h"
#include "tensor/cuda/stream_memory.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {
namespace {

constexpr size_t kTableBytes = kStreamTableBytes, kLibraryBytes = kStreamLibraryBytes;
constexpr size_t kTableAlignment = 256;
constexpr size_t kStagings = 2;

size_t ceil_to(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

class DeviceBytes {
 public:
  DeviceBytes(size_t size, int device) : size_(static_cast<int64_t>(size)), device_(device) {
    BRAID_CUDA_CHECK(cudaMalloc(&data_, size));
    count_allocation(size_, device_);
  }
  ~DeviceBytes() {
    if (data_ == nullptr) return;
    cudaFree(data_);
    count_allocation(-size_, device_);
  }
  DeviceBytes(DeviceBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_), device_(other.device_) {}
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_;
  int device_;
};

class Graph : public Recording {
 public:
  Graph(cudaGraph_t graph, cudaStream_t stream, std::vector<DeviceBytes> constants)
      : graph_(graph), stream_(stream), constants_(std::move(constants)) {
    BRAID_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~Graph() override {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  void replay() override { BRAID_CUDA_CHECK(cudaGraphLaunch(executable_, stream_)); }

 private:
  cudaGraph_t graph_;
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
  std::vector<DeviceBytes> constants_;
};

class DeviceStream : public StreamState {
 public:
  explicit DeviceStream(int device) : device_(device) {
    if (device < 0 || device >= num_devices()) no_such_device(device, num_devices());
    BRAID_CUDA_CHECK(cudaSetDevice(device));
    BRAID_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    BRAID_CUDA_CHECK(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking));
    BRAID_CUDA_CHECK(
        cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, device));
    int major = 0;
    BRAID_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    overlaps_ = major >= 9;
    BRAID_CUDA_CHECK(cudaMallocHost(&staging_, kStagings * kTableBytes));
    for (cudaEvent_t& event : copied_) {
      BRAID_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    BRAID_CUDA_CHECK(cudaMalloc(&tables_, kTableBytes));
    BRAID_CUDA_CHECK(cudaMalloc(&counters_, kNumCounters * sizeof(int32_t)));
    BRAID_CUDA_CHECK(cudaMemset(counters_, 0, kNumCounters * sizeof(int32_t)));
    BRAID_CUDA_CHECK(cudaDeviceSynchronize());
    count_own(1);
  }

  ~DeviceStream() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    count_own(-1);
    if (library_ != nullptr) cublasLtDestroy(library_);
    if (library_memory_ != nullptr) cudaFree(library_memory_);
    cudaFree(counters_);
    cudaFree(tables_);
    cudaFreeHost(staging_);
    for (const cudaEvent_t event : copied_) cudaEventDestroy(event);
    for (const LargeStaging& staging : large_) {
      if (staging.data != nullptr) cudaFreeHost(staging.data);
      if (staging.copied != nullptr) cudaEventDestroy(staging.copied);
    }
    cudaStreamDestroy(beside_);
    cudaStreamDestroy(stream_);
  }

  CUstream_st* handle() const override { return stream_; }
  int device() const override { return device_; }
  int num_multiprocessors() const override { return num_multiprocessors_; }

  bool overlaps_kernels() const override { return overlaps_; }

  void set_deterministic(bool deterministic) override { deterministic_ = deterministic; }
  bool deterministic() const override { return deterministic_; }

  void set_synchronous(bool synchronous) override { synchronous_ = synchronous; }
  int64_t num_finished_ops() const { return num_finished_ops_; }
  void finish_op(const char* op, bool lets_next_begin) override {
    ++num_finished_ops_;
    next_begins_ahead_ = lets_next_begin && (!synchronous_ || recording_);
    cudaError_t status = cudaGetLastError();
    if (status == cudaSuccess && synchronous_ && !recording_)
      status = cudaStreamSynchronize(stream_);
    if (status != cudaSuccess) call_failed("cuda", 0, op, cudaGetErrorString(status));
  }

  bool next_begins_ahead() const override { return next_begins_ahead_; }

  void begin_step() override {
    BRAID_CUDA_CHECK(cudaSetDevice(device_));
    recycle();
    in_step_ = true;
  }
  void end_step() override {
    in_step_ = false;
    known_.clear();
  }

  void start_recording() override {
    BRAID_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    recording_ = true;
  }
  std::unique_ptr<Recording> stop_recording() override {
    recording_ = false;
    cudaGraph_t graph = nullptr;
    BRAID_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    return std::make_unique<Graph>(graph, stream_, std::exchange(constants_, {}));
  }
  size_t table_layout() const override { return layout_; }

  const void* table(const void* key, size_t bytes,
                    const std::function<void(std::byte*)>& make) override {
    if (in_step_) {
      const auto found = known_.find(key);
      if (found != known_.end() && found->second.bytes == bytes) return found->second.address;
    }
    if (recording_) return constant_table(key, bytes, make);
    const size_t padded = in_step_ ? std::bit_ceil(std::max(bytes, kTableAlignment))
                                   : ceil_to(bytes, kTableAlignment);
    if (padded > kTableBytes - used_) {
      if (in_step_ || padded > kTableBytes) {
        call_failed("cuda", 0, "table",
                    "a step's tables do not fit; use a smaller --batch-tokens, fewer sequences or "
                    "fewer drafts");
      }
      recycle();
    }
    std::byte* const host = staging_ + current_ * kTableBytes + used_;
    std::byte* const target = tables_ + used_;
    used_ += padded;
    layout_ = layout_ * 31 + padded;
    make(host);
    BRAID_CUDA_CHECK(cudaMemcpyAsync(target, host, bytes, cudaMemcpyHostToDevice, stream_));
    if (in_step_) known_[key] = {target, bytes};
    return target;
  }

  void upload(std::byte* target, size_t bytes, const std::function<void(std::byte*)>& make) {
    if (recording_) call_failed("cuda", 0, "upload", "nothing large is uploaded while recording");
    LargeStaging& staging = large_[current_large_];
    current_large_ = (current_large_ + 1) % kStagings;
    if (staging.copied == nullptr) {
      BRAID_CUDA_CHECK(cudaEventCreateWithFlags(&staging.copied, cudaEventDisableTiming));
    }
    BRAID_CUDA_CHECK(cudaEventSynchronize(staging.copied));
    if (staging.size < bytes) {
      if (staging.data != nullptr) BRAID_CUDA_CHECK(cudaFreeHost(staging.data));
      staging.data = nullptr;
      staging.size = 0;
      BRAID_CUDA_CHECK(cudaMallocHost(&staging.data, std::bit_ceil(bytes)));
      staging.size = std::bit_ceil(bytes);
    }
    make(staging.data);
    BRAID_CUDA_CHECK(cudaMemcpyAsync(target, staging.data, bytes, cudaMemcpyHostToDevice, stream_));
    BRAID_CUDA_CHECK(cudaEventRecord(staging.copied, stream_));
  }

  int32_t* counters() override { return counters_; }

  std::span<std::byte> library_workspace() override {
    if (library_memory_ == nullptr) {
      BRAID_CUDA_CHECK(cudaMalloc(&library_memory_, kLibraryBytes));
      count_allocation(kLibraryBytes, device_);
    }
    return {library_memory_, kLibraryBytes};
  }
  void* matrix_library() override {
    if (library_ == nullptr) {
      BRAID_CUDA_CHECK(cudaSetDevice(device_));
      if (cublasLtCreate(&library_) != CUBLAS_STATUS_SUCCESS) {
        call_failed(__FILE__, __LINE__, "cublasLtCreate", "failed");
      }
    }
    return library_;
  }

 private:
  struct Table {
    const void* address;
    size_t bytes;
  };
  struct LargeStaging {
    std::byte* data = nullptr;  // pinned
    size_t size = 0;
    cudaEvent_t copied = nullptr;  // what was copied from it has been read
  };

  // sign: 1 for what is there from the beginning, -1 for all that is there at the end.
  void count_own(int64_t sign) const noexcept {
    count_allocation(sign * static_cast<int64_t>(kTableBytes), device_);
    count_allocation(sign * int64_t{kNumCounters * sizeof(int32_t)}, device_);
    if (library_memory_ != nullptr) {
      count_allocation(sign * static_cast<int64_t>(kLibraryBytes), device_);
    }
  }

  const void* constant_table(const void* key, size_t bytes,
                             const std::function<void(std::byte*)>& make) {
    std::vector<std::byte> host(bytes);
    make(host.data());
    DeviceBytes copy(bytes, device_);
    BRAID_CUDA_CHECK(
        cudaMemcpyAsync(copy.data(), host.data(), bytes, cudaMemcpyHostToDevice, beside_));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(beside_));
    known_[key] = {copy.data(), bytes};
    constants_.push_back(std::move(copy));
    return constants_.back().data();
  }

  // Copies from the staging memory may still be under way: it is used in turn with another. The
  // tables on the device are written after the kernels in front have read them.
  void recycle() {
    BRAID_CUDA_CHECK(cudaEventRecord(copied_[current_], stream_));
    current_ = (current_ + 1) % kStagings;
    BRAID_CUDA_CHECK(cudaEventSynchronize(copied_[current_]));
    used_ = 0;
    layout_ = 0;
    known_.clear();
  }

  int device_;
  int num_multiprocessors_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaStream_t beside_ = nullptr;  // for copies while the stream records
  bool overlaps_ = false;
  bool deterministic_ = false;
  bool synchronous_ = false;
  int64_t num_finished_ops_ = 0;
  bool next_begins_ahead_ = false;
  bool in_step_ = false;
  bool recording_ = false;
  std::byte* staging_ = nullptr;  // kStagings pieces of kTableBytes
  size_t current_ = 0;
  cudaEvent_t copied_[kStagings] = {};  // what was copied from the piece has been read
  LargeStaging large_[kStagings];
  size_t current_large_ = 0;
  std::byte* tables_ = nullptr;
  int32_t* counters_ = nullptr;
  size_t used_ = 0;
  size_t layout_ = 0;  // of the sizes so far
  std::unordered_map<const void*, Table> known_;
  std::vector<DeviceBytes> constants_;  // of the recording under way
  cublasLtHandle_t library_ = nullptr;
  std::byte* library_memory_ = nullptr;
};

}  // namespace

StreamState* create_stream_state(int device) { return new DeviceStream(device); }

void destroy_stream_state(StreamState* state) noexcept { delete state; }

void synchronize(StreamState& state) { BRAID_CUDA_CHECK(cudaStreamSynchronize(state.handle())); }

const int32_t* on_device(StreamState& state, const IndexList& list) {
  if (!list.device().is_cpu() || list.size() == 0) return list.data();
  const size_t bytes = static_cast<size_t>(list.size()) * sizeof(int32_t);
  return static_cast<const int32_t*>(state.table(
      list.data(), bytes, [&](std::byte* out) { std::memcpy(out, list.data(), bytes); }));
}

int64_t num_finished_ops(const StreamState& state) {
  return static_cast<const DeviceStream&>(state).num_finished_ops();
}

void upload(StreamState& state, std::byte* target, size_t bytes,
            const std::function<void(std::byte*)>& make) {
  static_cast<DeviceStream&>(state).upload(target, bytes, make);
}

std::byte* allocate_pinned(size_t size_bytes) {
  void* data = nullptr;
  BRAID_CUDA_CHECK(cudaMallocHost(&data, size_bytes));
  return static_cast<std::byte*>(data);
}

void release_pinned(std::byte* data) noexcept { cudaFreeHost(data); }

void copy_to_host_async(StreamState& state, void* target, const void* source, size_t bytes) {
  BRAID_CUDA_CHECK(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, state.handle()));
}

void copy_to_device_async(StreamState& state, void* target, const void* source, size_t bytes) {
  BRAID_CUDA_CHECK(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, state.handle()));
}

void copy_on_device(StreamState& state, void* target, const void* source, size_t bytes) {
  BRAID_CUDA_CHECK(
      cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, state.handle()));
}

}  // namespace braid::cuda

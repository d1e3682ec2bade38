#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "tensor/index_list.h"

// As in the CUDA headers, which only .cu files include.
struct CUstream_st;

namespace braid::cuda {

// Kernels that were queued once, with all that happened on the device between them, to be queued
// again in one go (a CUDA graph).
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

// A CUDA stream with what ops need beside it. All functions throw Error with CUDA's message on
// failure; a build without CUDA has them too, and they all throw.
class StreamState {
 public:
  virtual ~StreamState() = default;

  virtual CUstream_st* handle() const = 0;
  virtual int device() const = 0;
  virtual int num_multiprocessors() const = 0;

  // Kernels may be launched before the ones in front have finished (programmatic dependent launch,
  // from Hopper on); each waits by itself for what it reads.
  virtual bool overlaps_kernels() const = 0;

  // Ops compute each token as they would alone: with the same order of every sum, whatever the
  // number of its mates, at some price.
  virtual void set_deterministic(bool deterministic) = 0;
  virtual bool deterministic() const = 0;

  // Wait for every op, so that an error is reported by the one that failed; for tests.
  virtual void set_synchronous(bool synchronous) = 0;
  // Every op calls it when its kernels are queued: checks the launches (and, if synchronous, the
  // kernels). lets_next_begin: the last kernel does so before those in front of it are done.
  virtual void finish_op(const char* op, bool lets_next_begin = false) = 0;
  // As the last op said: the next one must read nothing before it waits that an op has made in this
  // step.
  virtual bool next_begins_ahead() const = 0;

  // Tables of a step. Between begin_step() and end_step(), what was uploaded under a key is found
  // again, so the layers that share a table cause one copy. `bytes` of host memory are copied
  // before the call returns, so they may change afterwards; the device copy lives until the next
  // begin_step().
  virtual void begin_step() = 0;
  virtual void end_step() = 0;
  // Records what is queued until stop_recording() instead of running it. A replay finds the tables
  // that were uploaded before in the step where they were, if its own step has uploaded its own in
  // the same order, each with room for as many bytes (table_layout() is then the same). Tables that
  // are uploaded while recording keep their contents in every replay: they must depend on nothing
  // but the sizes of the step.
  virtual void start_recording() = 0;
  virtual std::unique_ptr<Recording> stop_recording() = 0;
  // Of tables uploaded since begin_step().
  virtual size_t table_layout() const = 0;
  // key: an address that stays the same object during the step; `make` fills the table, if need be.
  // In a step, each has room for its bytes rounded up to a power of two, so that most tables of
  // other lengths leave the layout as it is.
  virtual const void* table(const void* key, size_t bytes,
                            const std::function<void(std::byte*)>& make) = 0;

  // kNumCounters numbers in device memory, zero at first. A kernel that uses them leaves zeros.
  static constexpr int kNumCounters = 4096;
  virtual int32_t* counters() = 0;

  // Memory for matrix libraries, for use by one op at a time.
  virtual std::span<std::byte> library_workspace() = 0;
  // cublasLtHandle_t
  virtual void* matrix_library() = 0;
};

StreamState* create_stream_state(int device);
void destroy_stream_state(StreamState* state) noexcept;
void synchronize(StreamState& state);

// A copy of the list in the stream's device memory; the list itself if it is there.
const int32_t* on_device(StreamState& state, const IndexList& list);

// Host memory that copies to and from devices need not stage.
std::byte* allocate_pinned(size_t size_bytes);
void release_pinned(std::byte* data) noexcept;

// Queued copies between the host and the stream's device; the host's memory must stay until the
// stream is synchronised.
void copy_to_host_async(StreamState& state, void* target, const void* source, size_t bytes);
void copy_to_device_async(StreamState& state, void* target, const void* source, size_t bytes);
// Within the stream's device.
void copy_on_device(StreamState& state, void* target, const void* source, size_t bytes);

}  // namespace braid::cuda

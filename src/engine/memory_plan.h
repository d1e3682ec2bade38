#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache_plan.h"
#include "models/model.h"
#include "ops/linear/linear.h"
#include "tensor/device.h"

namespace braid {

enum class MemoryKind {
  kWeights,    // files are mapped: the system may drop and read again what it lacks room for
  kCache,      // keys, values, recurrent states of all sequences at their longest
  kWorkspace,  // activations of the largest step
  kFixed,      // the program, its tables and threads; of a CUDA device: context, code, graphs
};
std::string_view memory_kind_name(MemoryKind kind);

struct MemoryItem {
  MemoryKind kind = MemoryKind::kFixed;
  std::string what;
  int64_t bytes = 0;  // at most
};

// What a run may take at most, of the host's memory or, with a CUDA device, of the device's.
// Figures are upper bounds: the cache holds no more (CachePool's size_bytes), the workspace is
// given no more (Engine's and Runner's workspace_bytes).
struct MemoryPlan {
  std::vector<MemoryItem> items;
  // Layers whose matrices stay in the host's memory (of which these bytes are not part of the plan)
  // and come to the device for each step.
  std::vector<int64_t> layers_on_host;
  int64_t host_bytes = 0;

  void add(MemoryKind kind, std::string what, int64_t bytes);
  int64_t bytes(MemoryKind kind) const;
  int64_t total() const;
};

struct StepSize {
  int64_t tokens = 0;       // most in one forward pass
  int64_t logits_rows = 0;  // of these, rows of logits
  int64_t edited_rows = 0;  // of these, drawn from by rules that may change any of the logits
  int64_t sequences = 1;    // whose tokens they are
  ActivationPrecision precision = ActivationPrecision::kF32;
};

// What a kind of device adds and how it counts.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // What an allocation of so many bytes takes.
  virtual int64_t allocated(int64_t bytes) const = 0;
  int64_t allocated_all(std::span<const int64_t> sizes) const;
  // What a workspace takes that holds so many bytes.
  virtual int64_t workspace(int64_t bytes) const { return bytes; }
  // Most bytes that a step takes of its workspace.
  virtual int64_t step_bytes(const Model& model, const StepSize& step) const = 0;
  int64_t workspace_bytes(const Model& model, const StepSize& step) const {
    return workspace(step_bytes(model, step));
  }
  // Of that, what rules may take that change logits.
  virtual int64_t edit_bytes(int64_t /*edited_rows*/, int64_t /*vocab_size*/) const { return 0; }
  // Of an input of a matrix, bytes an element, with what rounding makes of it.
  virtual double input_bytes(ActivationPrecision precision) const = 0;
  // What is there before any model.
  virtual void add_fixed(MemoryPlan& plan) const = 0;
  // What a stream takes, and the graphs of a runner on it.
  virtual void add_stream(MemoryPlan&, const std::string&) const {}
  virtual void add_graphs(MemoryPlan&, const std::string&, const Model&, const StepSize&) const {}
};
std::unique_ptr<DeviceMemory> device_memory(Device device, int num_threads);

struct WeightBytes {
  WeightBytes(int64_t bytes, int64_t beside = 0)  // NOLINT: implicit by design
      : bytes(bytes), beside(beside) {}

  int64_t bytes;
  int64_t beside;  // while they are loaded, before there is a cache or a workspace
  std::vector<int64_t> layers_on_host;
  int64_t host_bytes = 0;
};

// Weights of which the device gets at most `room` bytes: as few layers as possible, spread evenly,
// stay on the host. Nothing if not even what belongs to no layer fits.
std::optional<WeightBytes> plan_offload(const PlacementCount& count, int64_t room);

// The model's weights, its cache, its workspace, its stream's and its runner's needs. `name` tells
// models apart: "", "reference: ".
void add_model(MemoryPlan& plan, const std::string& name, const Model& model,
               const WeightBytes& weights, const CacheOptions& cache, const StepSize& step,
               const DeviceMemory& device);

// The stores of a cache alone.
void add_cache(MemoryPlan& plan, const std::string& name, const CachePlan& cache,
               const DeviceMemory& device);

// The tensors that a CachePool with this plan allocates, bytes of each.
struct CacheAllocations {
  std::vector<int64_t> full, window, recurrent;
};
CacheAllocations cache_allocations(const CachePlan& plan);

// The largest n in [low, high] for which fits(n), which must not hold again once it has failed;
// nothing if not even low fits.
std::optional<int64_t> largest_fitting(int64_t low, int64_t high,
                                       const std::function<bool(int64_t)>& fits);

// The most memory that the process has had resident so far, mapped files included.
int64_t peak_resident_bytes();

}  // namespace braid

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
  kFixed,      // the program, its tables and threads
};
std::string_view memory_kind_name(MemoryKind kind);

struct MemoryItem {
  MemoryKind kind = MemoryKind::kFixed;
  std::string what;
  int64_t bytes = 0;  // at most
};

// What a run may take at most. Figures are upper bounds: the cache holds no more (CachePool's
// size_bytes), the workspace is given no more (Engine's and Runner's workspace_bytes).
struct MemoryPlan {
  std::vector<MemoryItem> items;

  void add(MemoryKind kind, std::string what, int64_t bytes);
  int64_t bytes(MemoryKind kind) const;
  int64_t total() const;
};

struct StepSize {
  int64_t tokens = 0;       // most in one forward pass
  int64_t logits_rows = 0;  // of these, rows of logits
  ActivationPrecision precision = ActivationPrecision::kF32;
};

// What a kind of device adds and how it counts.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Most bytes of the workspace in a step.
  virtual int64_t workspace_bytes(const Model& model, const StepSize& step) const = 0;
  // What is there before any model.
  virtual void add_fixed(MemoryPlan& plan) const = 0;
};
// Throws Error for a kind of device that memory cannot be planned for yet.
std::unique_ptr<DeviceMemory> device_memory(Device device, int num_threads);

// The model's weights (`weight_bytes`), its cache and its workspace. `name` tells models apart:
// "", "draft ", "reference ".
void add_model(MemoryPlan& plan, const std::string& name, const Model& model, int64_t weight_bytes,
               const CacheOptions& cache, const StepSize& step, const DeviceMemory& device);

// The largest n in [low, high] for which fits(n), which must not hold again once it has failed;
// nothing if not even low fits.
std::optional<int64_t> largest_fitting(int64_t low, int64_t high,
                                       const std::function<bool(int64_t)>& fits);

// The most memory that the process has had resident so far, mapped files included.
int64_t peak_resident_bytes();

}  // namespace braid

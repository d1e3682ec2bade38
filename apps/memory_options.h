#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "apps/device_options.h"
#include "engine/memory_plan.h"

namespace braid {

// --memory-budget: what a command may take. Without it nothing is planned.
class MemoryOptions {
 public:
  // offload: with --offload, too.
  void add_to(CLI::App& command, bool offload = false);
  bool wanted() const { return !text_.empty(); }
  int64_t budget_bytes() const;  // throws UsageError; 0 if not wanted

  // A model that is only described: its weights are mapped, not read. Throws Error if even they
  // exceed the budget of the CPU.
  LoadedModel describe(const DeviceOptions& device) const;
  bool offloads() const { return offload_; }

 private:
  std::string text_;
  bool offload_ = false;
};

// How much a command computes at a time.
struct MemoryShape {
  int64_t context = 0;    // tokens of a sequence
  int64_t sequences = 1;  // side by side
};
using MemoryPlanFunction = std::function<MemoryPlan(const MemoryShape&)>;

// An empty plan with what the device and a vocabulary of that size take before any model.
MemoryPlan base_plan(const DeviceMemory& device, const LoadedModel& described);
// What the weights of a described model take: as stored, or packed if that is more and a packed
// copy will be used; on a CUDA device, laid out there.
WeightBytes planned_weight_bytes(const DeviceOptions& device, const LoadedModel& described);
int num_threads_of(const DeviceOptions& device);

// A plan with these weights of the model.
using PlanWithWeights = std::function<MemoryPlan(const MemoryShape&, const WeightBytes&)>;
// The plan with all weights on the device or, with --offload and where these do not fit the budget,
// with as many layers on it as fit.
MemoryPlan plan_weights(const MemoryOptions& options, const DeviceOptions& device,
                        const LoadedModel& described, const MemoryShape& shape,
                        const PlanWithWeights& plan);

// The longest context up to `shape.context` that fits the budget, if there is one.
std::optional<int64_t> fitting_context(int64_t budget, const MemoryShape& shape,
                                       const MemoryPlanFunction& plan);
// Prints the plan to standard error. Throws Error with the figures, and with the longest context
// and the most sequences that would fit, if it exceeds the budget.
void enforce_budget(int64_t budget, const MemoryShape& shape, const MemoryPlanFunction& plan);

// "weights 23.6 MB, cache 10.5 MB, …"
std::string memory_by_kind(const MemoryPlan& plan);
std::string memory_table(const MemoryPlan& plan, int64_t budget);
nlohmann::ordered_json memory_json(const MemoryPlan& plan, int64_t budget);
// A line on standard error: the peak of the process (of a CUDA device: of what it allocated there,
// and all that is in use there) beside what was planned.
void report_peak(const MemoryPlan& plan, Device device);

}  // namespace braid

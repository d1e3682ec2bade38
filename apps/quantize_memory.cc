#include "apps/quantize_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/memory_options.h"
#include "apps/table.h"
#include "base/error.h"

namespace braid {

MemoryPlan quantize_memory_plan(const MemoryNeed& need, const QuantizeOptions& options,
                                const CalibrationShape& shape, int num_threads) {
  const bool on_cpu = options.device.is_cpu();
  const auto device = device_memory(options.device, num_threads);
  MemoryPlan plan;
  device->add_fixed(plan);
  plan.add(MemoryKind::kWeights,
           on_cpu ? "the source" : "what the layers share, and a layer with what it becomes",
           need.source_bytes(shape));
  if (on_cpu) plan.add(MemoryKind::kWeights, "finished layers", need.quantised_bytes());
  if (on_cpu && need.balanced_bytes() > 0) {
    plan.add(MemoryKind::kWeights, "balanced copies", need.balanced_bytes());
  }
  int64_t activations = 0;
  if (shape.sequences > 0) {
    const Model& model = *need.model();
    const StepSize step{.tokens = need.batch_tokens(shape),
                        .sequences = need.batch_tokens(shape) / shape.length,
                        .precision = options.precision};
    const CacheAllocations caches =
        cache_allocations(plan_cache(model.cache_layout(), need.cache(shape)));
    plan.add(MemoryKind::kCache, "keys, values and states of the calibration",
             need.passes(shape) *
                 (device->allocated_all(caches.full) + device->allocated_all(caches.window) +
                  device->allocated_all(caches.recurrent)));
    plan.add(MemoryKind::kWorkspace, "inputs of a layer, of all tokens", need.hidden_bytes(shape));
    plan.add(MemoryKind::kWorkspace, "Hessians of matrices that are calibrated together",
             need.hessian_bytes(shape));
    activations = device->workspace_bytes(model, step) +
                  step.tokens * model.hidden_size() * static_cast<int64_t>(sizeof(float));
    device->add_stream(plan, "");
  }
  const int64_t solver = need.solver_bytes(shape);
  if (on_cpu) {
    plan.add(MemoryKind::kWorkspace, "activations", activations);
    if (need.kv_bytes() > 0) {
      plan.add(MemoryKind::kWorkspace, "how large keys and values are", need.kv_bytes());
    }
    plan.add(MemoryKind::kWorkspace, "rounding or packing of one matrix",
             std::max(solver, need.output_bytes()));
  } else {
    // The same memory, in turn.
    plan.add(MemoryKind::kWorkspace, "activations, or rounding of one matrix",
             device->workspace(std::max(activations, solver)));
  }
  return plan;
}

MemoryPlan enforce_quantize_budget(int64_t budget, const MemoryNeed& need,
                                   const QuantizeOptions& options, const CalibrationShape& shape,
                                   int num_threads) {
  MemoryPlan plan = quantize_memory_plan(need, options, shape, num_threads);
  fmt::print(stderr, "{}", memory_table(plan, budget));
  if (plan.total() <= budget) return plan;
  std::string hint;
  if (shape.sequences > 0) {
    const auto fitting = largest_fitting(1, shape.sequences, [&](int64_t sequences) {
      return quantize_memory_plan(need, options, {sequences, shape.length}, num_threads).total() <=
             budget;
    });
    hint = fmt::format(" for {} sequences of {} tokens; {}", shape.sequences, shape.length,
                       fitting ? fmt::format("--sequences {} fits", *fitting)
                               : std::string("not even one sequence fits"));
  }
  throw Error("the memory budget is {}, but {} are needed ({}){}", format_bytes(budget),
              format_bytes(plan.total()), memory_by_kind(plan), hint);
}

}  // namespace braid

#include "apps/quantize_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/memory_options.h"
#include "apps/table.h"
#include "base/error.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

int64_t sum_of(const CacheAllocations& caches, const DeviceMemory& device) {
  int64_t bytes = 0;
  for (const auto* allocations : {&caches.full, &caches.window, &caches.recurrent}) {
    for (const int64_t size : *allocations) bytes += device.allocated(size);
  }
  return bytes;
}

std::string size_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

MemoryPlan quantize_memory_plan(const MemoryNeed& need, const QuantizeOptions& options,
                                const CalibrationShape& shape, int num_threads) {
  const bool on_cpu = options.device.is_cpu();
  const auto device = device_memory(options.device, num_threads);
  MemoryPlan plan;
  device->add_fixed(plan);
  plan.add(MemoryKind::kWeights,
           on_cpu ? "the source" : "what the layers share, and a layer with what it becomes",
           need.source_bytes());
  if (on_cpu) plan.add(MemoryKind::kWeights, "finished layers", need.quantised_bytes());
  int64_t activations = 0;
  if (shape.sequences > 0) {
    const Model& model = *need.model();
    const StepSize step{.tokens = need.batch_tokens(shape),
                        .sequences = need.batch_tokens(shape) / shape.length,
                        .precision = options.precision};
    const int64_t passes = options.match_source ? 2 : 1;
    const CacheOptions cache = need.cache(shape);
    plan.add(MemoryKind::kCache, "keys, values and states of the calibration",
             passes * sum_of(cache_allocations(plan_cache(model.cache_layout(), cache)), *device));
    plan.add(MemoryKind::kWorkspace, "inputs of a layer, of all tokens", need.hidden_bytes(shape));
    plan.add(MemoryKind::kWorkspace, "Hessians of matrices that are calibrated together",
             need.hessian_bytes(shape));
    activations = device->workspace_bytes(model, step) +
                  step.tokens * model.hidden_size() * static_cast<int64_t>(sizeof(float));
    device->add_runner(plan, "", model, {.sequences = 0});
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
    constexpr int64_t kPiece = cuda::GrowingMemory::kPieceBytes;
    plan.add(MemoryKind::kWorkspace, "activations, or rounding of one matrix",
             (std::max(activations, solver) + kPiece - 1) / kPiece * kPiece);
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
  throw Error("the memory budget is {}, but {} are needed ({}){}", size_text(budget),
              size_text(plan.total()), memory_by_kind(plan), hint);
}

}  // namespace braid

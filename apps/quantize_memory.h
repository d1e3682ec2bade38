#pragma once

#include <cstdint>

#include "engine/memory_plan.h"
#include "quantize/memory_need.h"

namespace braid {

// What quantising takes at most, of the host's memory or, with a CUDA device, of the device's.
MemoryPlan quantize_memory_plan(const MemoryNeed& need, const QuantizeOptions& options,
                                const CalibrationShape& shape, int num_threads);

// Prints the plan to standard error. Throws Error with the figures, and with the most sequences
// that would fit, if it exceeds the budget.
MemoryPlan enforce_quantize_budget(int64_t budget, const MemoryNeed& need,
                                   const QuantizeOptions& options, const CalibrationShape& shape,
                                   int num_threads);

}  // namespace braid

#pragma once

#include "base/thread_pool.h"
#include "checkpoint/weight_map.h"

namespace braid {

// Throws Error naming the tensors that hold NaN or infinity.
void refuse_nonfinite(const WeightMap& weights, ThreadPool& pool);

}  // namespace braid

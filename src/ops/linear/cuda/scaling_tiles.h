#pragma once

#include "ops/linear/cuda/weight_stream.h"

namespace braid::cuda {

// stream_weights() of a plan with one tile of tokens by scaling_tiles.cuh; false: its format is
// none of those.
bool stream_scaling_tiles(Stream& stream, StreamPlan& plan);

}  // namespace braid::cuda

#include "ops/linear/cuda/scaling_tiles.cuh"
#include "ops/linear/cuda/scaling_tiles.h"

namespace braid::cuda {

bool stream_scaling_tiles(Stream& stream, StreamPlan& plan) {
  if (plan.format == FormatId::kW4G128) {
    launch_stream<ScalingTileSource<FormatId::kW4G128>, 1>(stream, plan);
  } else if (plan.format == FormatId::kW4G128F32) {
    launch_stream<ScalingTileSource<FormatId::kW4G128F32>, 1>(stream, plan);
  } else {
    return false;
  }
  return true;
}

}  // namespace braid::cuda

#include "ops/linear/cuda/stream_tiles.cuh"

namespace braid::cuda {

template void stream_tiles<FormatId::kQ4_0>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kQ8_0>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW8C>(Stream&, StreamPlan&);

}  // namespace braid::cuda

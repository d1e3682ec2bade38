#include "ops/linear/cuda/stream_tiles.cuh"

namespace braid::cuda {

template void stream_tiles<FormatId::kW4G32>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G64>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G128>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G32Asym>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G64Asym>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G128Asym>(Stream&, StreamPlan&);

}  // namespace braid::cuda

#include "ops/linear/cuda/stream_tiles.cuh"

namespace braid::cuda {

template void stream_tiles<FormatId::kW4G32F32>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G64F32>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G128F32>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G32AsymF32>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G64AsymF32>(Stream&, StreamPlan&);
template void stream_tiles<FormatId::kW4G128AsymF32>(Stream&, StreamPlan&);

}  // namespace braid::cuda

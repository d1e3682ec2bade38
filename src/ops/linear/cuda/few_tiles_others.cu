// Formats that few files have: with fewer kernels each.

#include "ops/linear/cuda/few_tiles.cuh"
#include "ops/linear/cuda/few_tiles.h"

namespace braid::cuda {

template <FormatId kFormat>
void few_tiles_of(Stream& stream, const Products& products, int tokens) {
  few_tiles_in<kFormat, false>(stream, products, tokens);
}
template void few_tiles_of<FormatId::kW4G32>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G32Asym>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G64Asym>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G128Asym>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G32F32>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G64F32>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G128F32>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G32AsymF32>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G64AsymF32>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G128AsymF32>(Stream&, const Products&, int);

}  // namespace braid::cuda

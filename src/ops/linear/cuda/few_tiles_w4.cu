#include "ops/linear/cuda/few_tiles.cuh"
#include "ops/linear/cuda/few_tiles.h"

namespace braid::cuda {

template <FormatId kFormat>
void few_tiles_of(Stream& stream, const Products& products, int tokens) {
  few_tiles_in<kFormat, true>(stream, products, tokens);
}
template void few_tiles_of<FormatId::kW4G128>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kW4G64>(Stream&, const Products&, int);
template void few_tiles_of<FormatId::kQ4_0>(Stream&, const Products&, int);

}  // namespace braid::cuda

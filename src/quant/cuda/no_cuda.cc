#include "base/error.h"
#include "quant/cuda/pack_tiles.h"

namespace braid::cuda {

Weight pack_tiles(const Weight&) {
  throw Error("this build has no CUDA backend; configure with the preset 'cuda'");
}

}  // namespace braid::cuda

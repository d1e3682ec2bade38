#pragma once

#include "quant/weight.h"

namespace braid::cuda {

// A weight whose rows lie in a device's memory as in files, laid out as tiles
// (quant/device_tiles.h) in memory of its own; the weight itself if there are none for it. Waits
// until it is done. Throws Error in a build without CUDA.
Weight pack_tiles(const Weight& weight);

}  // namespace braid::cuda

#pragma once

#include "quant/weight.h"

namespace braid {

// A matrix or stack of rows as it will be in tiles (quant/device_tiles.h), without its data; as it
// is, if its format or width has none.
Weight in_tile_layout(const Weight& rows);

}  // namespace braid

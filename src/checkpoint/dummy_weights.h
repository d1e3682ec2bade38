#pragma once

#include <cstdint>
#include <string_view>

#include "quant/weight.h"
#include "tensor/tensor.h"

namespace braid {

// A weight of made-up values, about N(0, 1/cols), the same for the same seed and name. Fast enough
// for tens of gigabytes: the memory is filled from a small pool of random blocks. Where the blocks
// of `format` do not divide a row, a format of smaller blocks is taken: that of GGUF tools, or of
// smaller groups. `format` may be one of panels (quant/panels.h): the same values in that layout.
// fill false: a matrix is deferred (quant/deferred_weight.h); its maker gives the same bytes on
// every device (of panels: on the CPU alone).
Weight make_dummy_weight(uint64_t seed, std::string_view name, const Shape& shape,
                         const QuantFormat& format, bool fill = true);

// The same in float32; vectors (and scalars) are near 1.
Tensor make_dummy_f32(uint64_t seed, std::string_view name, const Shape& shape);

}  // namespace braid

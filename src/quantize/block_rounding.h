#pragma once

#include <cstdint>

#include "quant/quant_format.h"

namespace braid {

// Whether rows can be rounded to the format by round_blocks().
bool can_round_blocks(const QuantFormat& format);

// Rounds `count` values (a multiple of the format's blocks) to GGUF blocks. q4_k and q6_k search
// scales and minima for the least squares, with larger weights counting a little more, first of
// each sub-block and then together under the block's float16 scales; the other formats round as
// quantize() does.
void round_blocks(const QuantFormat& format, const float* values, int64_t count, void* out);

}  // namespace braid

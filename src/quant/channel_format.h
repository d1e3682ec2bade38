#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/quant_format.h"

namespace braid {

// The w8c format: a row of int8 codes with one float32 scale, w = scale · code. A row begins with
// its scale and the sum of its codes (RowHeaderW8C in quant/schemes/block_layouts.h).

// `row` has room for row_bytes(cols) bytes; cols is a multiple of 32.
void write_channel_row(float scale, const int8_t* codes, int64_t cols, std::byte* row);

struct ChannelRow {
  float scale = 0;
  int32_t code_sum = 0;
  const int8_t* codes = nullptr;  // in the row
};
ChannelRow read_channel_row(const std::byte* row);

}  // namespace braid

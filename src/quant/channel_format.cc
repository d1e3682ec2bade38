#include "quant/channel_format.h"

#include <cstring>

#include "base/check.h"
#include "quant/schemes/block_layouts.h"

namespace braid {

void write_channel_row(float scale, const int8_t* codes, int64_t cols, std::byte* row) {
  BRAID_CHECK(cols % kW8CBlock == 0, "{} columns", cols);
  int32_t sum = 0;
  for (int64_t i = 0; i < cols; ++i) sum += codes[i];
  std::memcpy(row, &scale, 4);
  std::memcpy(row + 4, &sum, 4);
  std::memcpy(row + sizeof(RowHeaderW8C), codes, static_cast<size_t>(cols));
}

ChannelRow read_channel_row(const std::byte* row) {
  ChannelRow result;
  std::memcpy(&result.scale, row, 4);
  std::memcpy(&result.code_sum, row + 4, 4);
  result.codes = reinterpret_cast<const int8_t*>(row + sizeof(RowHeaderW8C));
  return result;
}

}  // namespace braid

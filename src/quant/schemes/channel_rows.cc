#include <algorithm>
#include <cmath>
#include <vector>

#include "quant/channel_format.h"
#include "quant/schemes/schemes.h"

namespace braid {

void dequantize_w8c(const void* in, int64_t blocks, float* out) {
  const ChannelRow row = read_channel_row(static_cast<const std::byte*>(in));
  for (int64_t i = 0; i < blocks * kW8CBlock; ++i) {
    out[i] = row.scale * static_cast<float>(row.codes[i]);
  }
}

// Symmetric: the largest magnitude becomes code 127. Codes go to nearest, ties to even; NaN becomes
// 0.
void quantize_w8c(const float* in, int64_t blocks, void* out) {
  const int64_t cols = blocks * kW8CBlock;
  float peak = 0;
  for (int64_t i = 0; i < cols; ++i) peak = std::max(peak, std::fabs(in[i]));
  const float scale = peak / 127.0f;
  std::vector<int8_t> codes(static_cast<size_t>(cols));
  if (scale != 0) {
    for (int64_t i = 0; i < cols; ++i) {
      const float steps = std::clamp(in[i] / scale, -127.0f, 127.0f);
      codes[i] = std::isnan(steps) ? int8_t{0} : static_cast<int8_t>(std::nearbyint(steps));
    }
  }
  write_channel_row(scale, codes.data(), cols, static_cast<std::byte*>(out));
}

}  // namespace braid

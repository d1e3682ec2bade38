#include "quantize/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "quant/channel_format.h"
#include "quant/group_format.h"
#include "quant/schemes/block_layouts.h"

namespace braid {
namespace {

float stored(FormatId type, float scale) {
  switch (type) {
    case FormatId::kBF16:
      return to_float(to_bfloat16(scale));
    case FormatId::kF16:
      return to_float(to_float16(scale));
    default:
      return scale;
  }
}

int nearest(float steps, int low, int high) {
  if (!(steps > static_cast<float>(low))) return low;
  if (steps >= static_cast<float>(high)) return high;
  return static_cast<int>(std::nearbyint(steps));
}

struct Range {
  float low, high;  // both sides of 0
  float least, greatest;
};
Range range_of(const float* w, int64_t count) {
  Range range{0, 0, w[0], w[0]};
  for (int64_t i = 0; i < count; ++i) {
    range.least = std::min(range.least, w[i]);
    range.greatest = std::max(range.greatest, w[i]);
  }
  range.low = std::min(range.low, range.least);
  range.high = std::max(range.high, range.greatest);
  return range;
}

// `factor` 1: the range fits.
GroupScale scale_for(const RoundingGrid& grid, const Range& range, float factor) {
  GroupScale result;
  const auto levels = static_cast<float>(grid.high - grid.low);
  switch (grid.zero) {
    case RoundingGrid::Zero::kMiddle: {
      const float peak = std::max(-range.low, range.high);
      result.scale = stored(grid.scale_type, factor * (peak / (levels / 2)));
      // The side with one code more is for the peak.
      if (grid.signed_scale && range.high >= -range.low) result.scale = -result.scale;
      result.zero = grid.middle;
      break;
    }
    case RoundingGrid::Zero::kChosen:
      result.scale = stored(grid.scale_type, factor * ((range.high - range.low) / levels));
      result.zero = result.scale > 0
                        ? nearest(-range.low * factor / result.scale, grid.least_zero, grid.high)
                        : grid.least_zero;
      break;
    case RoundingGrid::Zero::kMin: {
      // Smaller ranges around the same middle.
      const float width = range.greatest - range.least;
      result.scale = stored(grid.scale_type, factor * (width / levels));
      result.min = stored(grid.scale_type, range.least + (1 - factor) / 2 * width);
      break;
    }
  }
  return result;
}

double error_of(const RoundingGrid& grid, const GroupScale& scale, const float* w,
                const float* importance, int64_t count) {
  const float inverse = scale.scale != 0 ? 1 / scale.scale : 0;
  const float offset = static_cast<float>(scale.zero) - scale.min * inverse;
  const auto low = static_cast<float>(grid.low), high = static_cast<float>(grid.high);
  const auto zero = static_cast<float>(scale.zero);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    // Adding and taking away rounds to a whole number.
    constexpr float kWhole = 12582912.0f;
    const float steps = std::min(std::max(w[i] * inverse + offset, low), high);
    const float code = (steps + kWhole) - kWhole;
    const float e = w[i] - (scale.scale * (code - zero) + scale.min);
    sum += (importance != nullptr ? importance[i] : 1.0f) * e * e;
  }
  return sum;
}

void write_half(Half& to, float value) {
  const uint16_t bits = to_float16(value).bits;
  to = {{static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)}};
}
float read_half(Half h) {
  return to_float(Float16{static_cast<uint16_t>(h.bytes[0] | h.bytes[1] << 8)});
}

void put_nibbles(const uint8_t* codes, uint8_t (&q)[16]) {
  for (int j = 0; j < 16; ++j) q[j] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
}
void get_nibbles(const uint8_t (&q)[16], uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = q[j] & 15;
    codes[j + 16] = q[j] >> 4;
  }
}

}  // namespace

RoundingGrid rounding_grid(const QuantFormat& format, int64_t cols, bool per_row) {
  RoundingGrid grid{.format = &format, .group = format.block_elements};
  if (const auto group = as_group_format(format)) {
    grid.scale_type = group->f32_scales ? FormatId::kF32 : FormatId::kBF16;
    if (group->asymmetric) grid.zero = RoundingGrid::Zero::kChosen;
    if (per_row) grid.group = cols;
    return grid;
  }
  BRAID_CHECK(!per_row || format.id == FormatId::kW8C, "{}", format.name);
  switch (format.id) {
    case FormatId::kW8C:
      grid.group = cols;
      grid.low = 1, grid.high = 255, grid.middle = kByteMiddle;
      grid.scale_type = FormatId::kF32;
      return grid;
    case FormatId::kQ8_0:
      grid.low = 1, grid.high = 255, grid.middle = kByteMiddle;
      grid.scale_type = FormatId::kF16;
      return grid;
    case FormatId::kQ4_0:
      grid.scale_type = FormatId::kF16;
      grid.signed_scale = true;
      return grid;
    case FormatId::kQ4_1:
      grid.scale_type = FormatId::kF16;
      grid.zero = RoundingGrid::Zero::kMin;
      return grid;
    default:
      throw Error("{} has no grid to round to; use --method rtn", format.name);
  }
}

GroupScale fit_group(const RoundingGrid& grid, const float* w, const float* importance,
                     int64_t count, bool search) {
  const Range range = range_of(w, count);
  GroupScale best = scale_for(grid, range, 1);
  if (!search || best.scale == 0) return best;
  double least = error_of(grid, best, w, importance, count);
  for (int i = 0; i < kNumScaleFactors; ++i) {
    const float factor = kLargestScaleFactor - kScaleFactorStep * static_cast<float>(i);
    const GroupScale other = scale_for(grid, range, factor);
    const double error = error_of(grid, other, w, importance, count);
    if (error < least) {
      least = error;
      best = other;
    }
  }
  return best;
}

float stored_scale(const RoundingGrid& grid, float scale) { return stored(grid.scale_type, scale); }

int code_of(const RoundingGrid& grid, const GroupScale& scale, float w) {
  if (scale.scale == 0) return grid.zero == RoundingGrid::Zero::kMin ? 0 : scale.zero;
  const float steps = (w - scale.min) / scale.scale;
  // As the reference quantisers do: int8 codes are rounded as numbers of either sign.
  if (grid.middle == kByteMiddle) {
    return nearest(steps, grid.low - scale.zero, grid.high - scale.zero) + scale.zero;
  }
  return nearest(steps + static_cast<float>(scale.zero), grid.low, grid.high);
}

void round_row(const RoundingGrid& grid, const float* w, const float* importance, bool search,
               int64_t row, RoundedRows& rounded) {
  uint8_t* const codes = rounded.codes.data() + row * rounded.cols;
  for (int64_t g = 0; g < rounded.groups; ++g) {
    const int64_t begin = g * grid.group, end = std::min(begin + grid.group, rounded.cols);
    const GroupScale scale = fit_group(
        grid, w + begin, importance != nullptr ? importance + begin : nullptr, end - begin, search);
    rounded.scales[row * rounded.groups + g] = scale;
    for (int64_t c = begin; c < end; ++c)
      codes[c] = static_cast<uint8_t>(code_of(grid, scale, w[c]));
  }
}

void pack_row(const RoundingGrid& grid, const RoundedRows& rounded, int64_t row, std::byte* out) {
  const uint8_t* const codes = rounded.codes.data() + row * rounded.cols;
  const GroupScale* const scales = rounded.scales.data() + row * rounded.groups;
  const QuantFormat& format = *grid.format;
  if (format.id == FormatId::kW8C) {
    std::vector<int8_t> values(static_cast<size_t>(rounded.cols));
    for (int64_t c = 0; c < rounded.cols; ++c)
      values[c] = static_cast<int8_t>(codes[c] - kByteMiddle);
    write_channel_row(scales[0].scale, values.data(), rounded.cols, out);
    return;
  }
  for (int64_t begin = 0; begin < rounded.cols; begin += format.block_elements) {
    const GroupScale& scale = scales[begin / grid.group];
    const uint8_t* const block_codes = codes + begin;
    switch (format.id) {
      case FormatId::kQ8_0: {
        BlockQ8_0 block;
        write_half(block.d, scale.scale);
        for (int j = 0; j < 32; ++j) block.q[j] = static_cast<int8_t>(block_codes[j] - kByteMiddle);
        std::memcpy(out, &block, sizeof(block));
        break;
      }
      case FormatId::kQ4_0: {
        BlockQ4_0 block;
        write_half(block.d, scale.scale);
        put_nibbles(block_codes, block.q);
        std::memcpy(out, &block, sizeof(block));
        break;
      }
      case FormatId::kQ4_1: {
        BlockQ4_1 block;
        write_half(block.d, scale.scale);
        write_half(block.m, scale.min);
        put_nibbles(block_codes, block.q);
        std::memcpy(out, &block, sizeof(block));
        break;
      }
      default:
        write_group(format, {.scale = scale.scale, .zero = scale.zero}, block_codes, out);
    }
    out += format.block_bytes;
  }
}

void unpack_row(const RoundingGrid& grid, const std::byte* in, int64_t row, RoundedRows& rounded) {
  uint8_t* const codes = rounded.codes.data() + row * rounded.cols;
  GroupScale* const scales = rounded.scales.data() + row * rounded.groups;
  const QuantFormat& format = *grid.format;
  if (format.id == FormatId::kW8C) {
    const ChannelRow stored_row = read_channel_row(in);
    scales[0] = {.scale = stored_row.scale, .zero = kByteMiddle};
    for (int64_t c = 0; c < rounded.cols; ++c) {
      codes[c] = static_cast<uint8_t>(stored_row.codes[c] + kByteMiddle);
    }
    return;
  }
  for (int64_t begin = 0; begin < rounded.cols; begin += format.block_elements) {
    GroupScale& scale = scales[begin / grid.group];
    uint8_t* const block_codes = codes + begin;
    switch (format.id) {
      case FormatId::kQ8_0: {
        BlockQ8_0 block;
        std::memcpy(&block, in, sizeof(block));
        scale = {.scale = read_half(block.d), .zero = kByteMiddle};
        for (int j = 0; j < 32; ++j)
          block_codes[j] = static_cast<uint8_t>(block.q[j] + kByteMiddle);
        break;
      }
      case FormatId::kQ4_0: {
        BlockQ4_0 block;
        std::memcpy(&block, in, sizeof(block));
        scale = {.scale = read_half(block.d), .zero = 8};
        get_nibbles(block.q, block_codes);
        break;
      }
      case FormatId::kQ4_1: {
        BlockQ4_1 block;
        std::memcpy(&block, in, sizeof(block));
        scale = {.scale = read_half(block.d), .min = read_half(block.m)};
        get_nibbles(block.q, block_codes);
        break;
      }
      default: {
        const GroupHead head = read_group(format, in, block_codes);
        scale = {.scale = head.scale, .zero = head.zero};
      }
    }
    in += format.block_bytes;
  }
}

}  // namespace braid

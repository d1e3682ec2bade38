#include "quantize/block_rounding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "quant/schemes/schemes.h"

namespace braid {
namespace {

constexpr int kBlock = 256;

// To nearest, ties to even, of |x| < 2^22.
inline float rounded(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 · 2^23: no bits are left for a fraction
  return (x + kMagic) - kMagic;
}
inline float clamped(float x, float low, float high) { return std::min(std::max(x, low), high); }

float as_half(float x) { return to_float(to_half(x)); }

// How much the error of each value counts.
void set_importance(const float* x, int count, float* importance) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += x[i] * x[i];
  const float typical = std::sqrt(sum / static_cast<float>(count));
  for (int i = 0; i < count; ++i) importance[i] = typical + std::abs(x[i]);
}

// q4_k: eight sub-blocks of 32 codes 0 … 15, w = scale · q − min, both scale · 6 bits.
namespace q4 {

constexpr int kSub = 32, kSubs = kBlock / kSub;
constexpr float kLevels = 15, kSmall = 63;
// Ranges that are tried, in codes: from 14 to 16.5 codes for what 15 have to say.
constexpr int kCandidates = 26;
constexpr float kFirst = 14, kStep = 0.1f;

struct Fit {
  float scale = 0, min = 0, error = 0;
};

// The codes of a sub-block under a scale and min, and what they cost.
float round_sub(const float* x, const float* w, float scale, float min, float* codes) {
  const float inverse = scale > 0 ? 1 / scale : 0;
  float error = 0;
  for (int i = 0; i < kSub; ++i) {
    codes[i] = rounded(clamped((x[i] + min) * inverse, 0, kLevels));
    const float e = scale * codes[i] - min - x[i];
    error += w[i] * e * e;
  }
  return error;
}

Fit fit_sub(const float* x, const float* w) {
  float low = 0, high = x[0];
  for (int i = 0; i < kSub; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  Fit best{0, -low, 0};
  if (!(high > low)) return best;
  float sum_w = 0, sum_x = 0;
  for (int i = 0; i < kSub; ++i) {
    sum_w += w[i];
    sum_x += w[i] * x[i];
  }
  bool any = false;
  for (int c = 0; c < kCandidates; ++c) {
    const float inverse = (kFirst + kStep * static_cast<float>(c)) / (high - low);
    float q[kSub];
    float sum_q = 0, sum_qq = 0, sum_xq = 0;
    for (int i = 0; i < kSub; ++i) {
      q[i] = rounded(clamped((x[i] - low) * inverse, 0, kLevels));
      sum_q += w[i] * q[i];
      sum_qq += w[i] * q[i] * q[i];
      sum_xq += w[i] * x[i] * q[i];
    }
    // Least squares for these codes; minima are at most 0.
    const float det = sum_w * sum_qq - sum_q * sum_q;
    if (!(det > 0)) continue;
    float scale = (sum_w * sum_xq - sum_x * sum_q) / det;
    float offset = (sum_qq * sum_x - sum_q * sum_xq) / det;
    if (offset > 0) {
      offset = 0;
      scale = sum_xq / sum_qq;
    }
    if (!(scale > 0)) continue;
    float error = 0;
    for (int i = 0; i < kSub; ++i) {
      const float e = scale * q[i] + offset - x[i];
      error += w[i] * e * e;
    }
    if (!any || error < best.error) best = {scale, -offset, error};
    any = true;
  }
  if (!any) best.scale = (high - low) / kLevels;
  return best;
}

struct Block {
  float d = 0, dmin = 0;
  std::array<float, kSubs> scales{}, mins{};
  std::array<float, kBlock> codes{};
  float error = 0;
};

// The best small scale and min of each sub-block, near those that the fits ask for.
void choose_small(const float* x, const float* w, const std::array<Fit, kSubs>& fits, Block& b) {
  b.error = 0;
  for (int j = 0; j < kSubs; ++j) {
    const float scale = b.d > 0 ? rounded(clamped(fits[j].scale / b.d, 0, kSmall)) : 0;
    const float min = b.dmin > 0 ? rounded(clamped(fits[j].min / b.dmin, 0, kSmall)) : 0;
    float least = -1;
    for (int s = -1; s <= 1; ++s) {
      for (int m = -1; m <= 1; ++m) {
        const float ls = scale + static_cast<float>(s), lm = min + static_cast<float>(m);
        if (ls < 0 || ls > kSmall || lm < 0 || lm > kSmall) continue;
        float codes[kSub];
        const float error = round_sub(x + j * kSub, w + j * kSub, b.d * ls, b.dmin * lm, codes);
        if (least >= 0 && error >= least) continue;
        least = error;
        b.scales[j] = ls;
        b.mins[j] = lm;
        std::copy(codes, codes + kSub, b.codes.begin() + j * kSub);
      }
    }
    b.error += least;
  }
}

// d and dmin that suit the codes best, rounded to float16; whether there are such.
bool refit(const float* x, const float* w, Block& b) {
  double aa = 0, am = 0, mm = 0, ax = 0, mx = 0;
  for (int i = 0; i < kBlock; ++i) {
    const double a = b.scales[i / kSub] * b.codes[i], m = -b.mins[i / kSub];
    aa += w[i] * a * a;
    am += w[i] * a * m;
    mm += w[i] * m * m;
    ax += w[i] * a * x[i];
    mx += w[i] * m * x[i];
  }
  const double det = aa * mm - am * am;
  float d = 0, dmin = b.dmin;
  if (det > 1e-12 * aa * mm) {
    d = static_cast<float>((mm * ax - am * mx) / det);
    dmin = static_cast<float>((aa * mx - am * ax) / det);
  } else if (aa > 0) {
    d = static_cast<float>(ax / aa);
  }
  if (!(d > 0) || !(dmin >= 0)) return false;
  b.d = as_half(d);
  b.dmin = as_half(dmin);
  return true;
}

void pack(const Block& b, BlockQ4K& out) {
  out.d = to_half(b.d);
  out.dmin = to_half(b.dmin);
  std::memset(out.scales, 0, sizeof(out.scales));
  for (int j = 0; j < kSubs; ++j) {
    const auto scale = static_cast<uint8_t>(b.scales[j]), min = static_cast<uint8_t>(b.mins[j]);
    if (j < 4) {
      out.scales[j] |= scale;
      out.scales[j + 4] |= min;
    } else {
      out.scales[j + 4] = static_cast<uint8_t>((scale & 15) | (min & 15) << 4);
      out.scales[j - 4] |= static_cast<uint8_t>((scale >> 4) << 6);
      out.scales[j] |= static_cast<uint8_t>((min >> 4) << 6);
    }
  }
  for (int i = 0; i < kBlock / 2; ++i) {
    const int low = i / kSub * 2 * kSub + i % kSub;
    out.q[i] = static_cast<uint8_t>(static_cast<int>(b.codes[low]) |
                                    static_cast<int>(b.codes[low + kSub]) << 4);
  }
}

void round(const float* x, BlockQ4K& out) {
  float w[kBlock];
  std::array<Fit, kSubs> fits;
  float scale = 0, min = 0;
  for (int j = 0; j < kSubs; ++j) {
    set_importance(x + j * kSub, kSub, w + j * kSub);
    fits[j] = fit_sub(x + j * kSub, w + j * kSub);
    scale = std::max(scale, fits[j].scale);
    min = std::max(min, fits[j].min);
  }
  Block best;
  best.d = as_half(scale / kSmall);
  best.dmin = as_half(min / kSmall);
  choose_small(x, w, fits, best);
  Block next = best;
  constexpr int kRefits = 2;
  for (int i = 0; i < kRefits && refit(x, w, next); ++i) {
    choose_small(x, w, fits, next);
    if (!(next.error < best.error)) break;
    best = next;
  }
  pack(best, out);
}

}  // namespace q4

// q6_k: sixteen groups of 16 codes −32 … 31 with an int8 scale of a scale.
namespace q6 {

constexpr int kGroup = 16, kGroups = kBlock / kGroup;
constexpr float kLow = -32, kHigh = 31, kLeastScale = -128, kMostScale = 127;
constexpr int kCandidates = 21;
constexpr float kFirst = 31, kStep = 0.1f;  // codes for the value farthest from 0

float round_group(const float* x, const float* w, float scale, float* codes) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  float error = 0;
  for (int i = 0; i < kGroup; ++i) {
    codes[i] = rounded(clamped(x[i] * inverse, kLow, kHigh));
    const float e = scale * codes[i] - x[i];
    error += w[i] * e * e;
  }
  return error;
}

float fit_group(const float* x, const float* w) {
  float peak = 0;
  for (int i = 0; i < kGroup; ++i) {
    if (std::abs(x[i]) > std::abs(peak)) peak = x[i];
  }
  if (peak == 0) return 0;
  float best = 0, most = 0;
  for (int c = 0; c < kCandidates; ++c) {
    const float inverse = -(kFirst + kStep * static_cast<float>(c)) / peak;
    float sum_xq = 0, sum_qq = 0;
    for (int i = 0; i < kGroup; ++i) {
      const float q = rounded(clamped(x[i] * inverse, kLow, kHigh));
      sum_xq += w[i] * x[i] * q;
      sum_qq += w[i] * q * q;
    }
    // What the best scale for these codes takes off the sum of squares.
    if (sum_qq > 0 && sum_xq * sum_xq > most * sum_qq) {
      most = sum_xq * sum_xq / sum_qq;
      best = sum_xq / sum_qq;
    }
  }
  return best;
}

struct Block {
  float d = 0;
  std::array<float, kGroups> scales{};
  std::array<float, kBlock> codes{};
  float error = 0;
};

void choose_small(const float* x, const float* w, const std::array<float, kGroups>& fits,
                  Block& b) {
  b.error = 0;
  for (int j = 0; j < kGroups; ++j) {
    const float scale = b.d != 0 ? rounded(clamped(fits[j] / b.d, kLeastScale, kMostScale)) : 0.0f;
    float least = -1;
    for (int s = -1; s <= 1; ++s) {
      const float small = scale + static_cast<float>(s);
      if (small < kLeastScale || small > kMostScale) continue;
      float codes[kGroup];
      const float error = round_group(x + j * kGroup, w + j * kGroup, b.d * small, codes);
      if (least >= 0 && error >= least) continue;
      least = error;
      b.scales[j] = small;
      std::copy(codes, codes + kGroup, b.codes.begin() + j * kGroup);
    }
    b.error += least;
  }
}

bool refit(const float* x, const float* w, Block& b) {
  double aa = 0, ax = 0;
  for (int i = 0; i < kBlock; ++i) {
    const double a = b.scales[i / kGroup] * b.codes[i];
    aa += w[i] * a * a;
    ax += w[i] * a * x[i];
  }
  if (!(aa > 0)) return false;
  b.d = as_half(static_cast<float>(ax / aa));
  return b.d != 0;
}

void pack(const Block& b, BlockQ6K& out) {
  out.d = to_half(b.d);
  std::memset(out.low, 0, sizeof(out.low));
  std::memset(out.high, 0, sizeof(out.high));
  for (int j = 0; j < kGroups; ++j) out.scales[j] = static_cast<int8_t>(b.scales[j]);
  for (int i = 0; i < kBlock; ++i) {
    const int code = static_cast<int>(b.codes[i]) + 32;
    const int part = i % 128 / 32;  // as dequantize_q6_k() takes them apart
    out.low[i / 128 * 64 + part % 2 * 32 + i % 32] |=
        static_cast<uint8_t>((code & 15) << (part / 2 * 4));
    out.high[i / 128 * 32 + i % 32] |= static_cast<uint8_t>((code >> 4) << (part * 2));
  }
}

void round(const float* x, BlockQ6K& out) {
  float w[kBlock];
  std::array<float, kGroups> fits;
  float peak = 0;
  for (int j = 0; j < kGroups; ++j) {
    set_importance(x + j * kGroup, kGroup, w + j * kGroup);
    fits[j] = fit_group(x + j * kGroup, w + j * kGroup);
    if (std::abs(fits[j]) > std::abs(peak)) peak = fits[j];
  }
  Block best;
  best.d = as_half(peak / kLeastScale);
  choose_small(x, w, fits, best);
  Block next = best;
  if (refit(x, w, next)) {
    choose_small(x, w, fits, next);
    if (next.error < best.error) best = next;
  }
  pack(best, out);
}

}  // namespace q6

}  // namespace

bool can_round_blocks(const QuantFormat& format) {
  return format.id == FormatId::kQ4K || format.id == FormatId::kQ6K || can_quantize(format);
}

void round_blocks(const QuantFormat& format, const float* values, int64_t count, void* out) {
  if (format.id == FormatId::kQ4K) {
    for (int64_t b = 0; b < count / kBlock; ++b) {
      q4::round(values + b * kBlock, static_cast<BlockQ4K*>(out)[b]);
    }
  } else if (format.id == FormatId::kQ6K) {
    for (int64_t b = 0; b < count / kBlock; ++b) {
      q6::round(values + b * kBlock, static_cast<BlockQ6K*>(out)[b]);
    }
  } else {
    quantize(format, values, count, out);
  }
}

}  // namespace braid

#include <algorithm>
#include <cmath>

#include "quant/schemes/schemes.h"

namespace braid {
namespace {

constexpr int kBlock = 32;

template <typename Block>
const Block* blocks_of(const void* in) {
  return static_cast<const Block*>(in);
}
template <typename Block>
Block* blocks_of(void* out) {
  return static_cast<Block*>(out);
}

uint32_t read_u32(const uint8_t (&bytes)[4]) {
  return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | uint32_t{bytes[3]} << 24;
}
void write_u32(uint8_t (&bytes)[4], uint32_t value) {
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
}

int nibble(const uint8_t (&q)[16], int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
void set_nibbles(uint8_t (&q)[16], const int (&codes)[kBlock]) {
  for (int j = 0; j < 16; ++j) {
    q[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
  }
}
uint32_t fifth_bits(const int (&codes)[kBlock]) {
  uint32_t bits = 0;
  for (int j = 0; j < kBlock; ++j) bits |= static_cast<uint32_t>(codes[j] >> 4 & 1) << j;
  return bits;
}

// Truncates to 0 … top; NaN becomes 0.
int truncate(float x, int top) {
  return !(x > 0.0f) ? 0 : x >= static_cast<float>(top) ? top : static_cast<int>(x);
}

// The value of largest magnitude, with its sign; the first of equals.
float signed_peak(const float* x) {
  float peak = 0.0f;
  for (int j = 0; j < kBlock; ++j) {
    if (std::fabs(x[j]) > std::fabs(peak)) peak = x[j];
  }
  return peak;
}

// Codes of a symmetric format with 2 · half levels: the signed peak becomes code 0.
float quantize_symmetric(const float* x, int half, int (&codes)[kBlock]) {
  const float d = signed_peak(x) / static_cast<float>(-half);
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  for (int j = 0; j < kBlock; ++j) {
    const float shifted = x[j] * inverse + (static_cast<float>(half) + 0.5f);
    codes[j] = truncate(shifted, 2 * half - 1);
  }
  return d;
}

// Codes of a format with levels 0 … top above the smallest value.
float quantize_from_min(const float* x, int top, int (&codes)[kBlock], float& min) {
  const auto [lowest, highest] = std::minmax_element(x, x + kBlock);
  min = *lowest;
  const float d = (*highest - min) / static_cast<float>(top);
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  for (int j = 0; j < kBlock; ++j) {
    codes[j] = truncate((x[j] - min) * inverse + 0.5f, top);
  }
  return d;
}

int nearest_iq4_nl(float x) {
  int best = 0;
  for (int i = 1; i < 16; ++i) {
    if (std::fabs(x - kIq4NlValues[i]) < std::fabs(x - kIq4NlValues[best])) best = i;
  }
  return best;
}

}  // namespace

void dequantize_q8_0(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += kBlock) {
    const auto& block = blocks_of<BlockQ8_0>(in)[b];
    const float d = to_float(block.d);
    for (int j = 0; j < kBlock; ++j) out[j] = d * block.q[j];
  }
}

void dequantize_q4_0(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += kBlock) {
    const auto& block = blocks_of<BlockQ4_0>(in)[b];
    const float d = to_float(block.d);
    for (int j = 0; j < kBlock; ++j) out[j] = d * (nibble(block.q, j) - 8);
  }
}

void dequantize_q4_1(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += kBlock) {
    const auto& block = blocks_of<BlockQ4_1>(in)[b];
    const float d = to_float(block.d), m = to_float(block.m);
    for (int j = 0; j < kBlock; ++j) out[j] = d * nibble(block.q, j) + m;
  }
}

void dequantize_q5_0(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += kBlock) {
    const auto& block = blocks_of<BlockQ5_0>(in)[b];
    const float d = to_float(block.d);
    const uint32_t high = read_u32(block.high);
    for (int j = 0; j < kBlock; ++j) {
      const int q = nibble(block.q, j) | static_cast<int>(high >> j & 1) << 4;
      out[j] = d * (q - 16);
    }
  }
}

void dequantize_q5_1(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += kBlock) {
    const auto& block = blocks_of<BlockQ5_1>(in)[b];
    const float d = to_float(block.d), m = to_float(block.m);
    const uint32_t high = read_u32(block.high);
    for (int j = 0; j < kBlock; ++j) {
      const int q = nibble(block.q, j) | static_cast<int>(high >> j & 1) << 4;
      out[j] = d * q + m;
    }
  }
}

void dequantize_iq4_nl(const void* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += kBlock) {
    const auto& block = blocks_of<BlockIq4Nl>(in)[b];
    const float d = to_float(block.d);
    for (int j = 0; j < kBlock; ++j) out[j] = d * kIq4NlValues[nibble(block.q, j)];
  }
}

void quantize_q8_0(const float* in, int64_t blocks, void* out) {
  for (int64_t b = 0; b < blocks; ++b, in += kBlock) {
    auto& block = blocks_of<BlockQ8_0>(out)[b];
    const float d = std::fabs(signed_peak(in)) / 127.0f;
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    block.d = to_half(d);
    for (int j = 0; j < kBlock; ++j) {
      const int magnitude = truncate(std::fabs(in[j] * inverse) + 0.5f, 127);
      block.q[j] = static_cast<int8_t>(in[j] < 0.0f ? -magnitude : magnitude);
    }
  }
}

void quantize_q4_0(const float* in, int64_t blocks, void* out) {
  for (int64_t b = 0; b < blocks; ++b, in += kBlock) {
    auto& block = blocks_of<BlockQ4_0>(out)[b];
    int codes[kBlock];
    block.d = to_half(quantize_symmetric(in, 8, codes));
    set_nibbles(block.q, codes);
  }
}

void quantize_q4_1(const float* in, int64_t blocks, void* out) {
  for (int64_t b = 0; b < blocks; ++b, in += kBlock) {
    auto& block = blocks_of<BlockQ4_1>(out)[b];
    int codes[kBlock];
    float min;
    block.d = to_half(quantize_from_min(in, 15, codes, min));
    block.m = to_half(min);
    set_nibbles(block.q, codes);
  }
}

void quantize_q5_0(const float* in, int64_t blocks, void* out) {
  for (int64_t b = 0; b < blocks; ++b, in += kBlock) {
    auto& block = blocks_of<BlockQ5_0>(out)[b];
    int codes[kBlock];
    block.d = to_half(quantize_symmetric(in, 16, codes));
    write_u32(block.high, fifth_bits(codes));
    set_nibbles(block.q, codes);
  }
}

void quantize_q5_1(const float* in, int64_t blocks, void* out) {
  for (int64_t b = 0; b < blocks; ++b, in += kBlock) {
    auto& block = blocks_of<BlockQ5_1>(out)[b];
    int codes[kBlock];
    float min;
    block.d = to_half(quantize_from_min(in, 31, codes, min));
    block.m = to_half(min);
    write_u32(block.high, fifth_bits(codes));
    set_nibbles(block.q, codes);
  }
}

// The peak is put on the outermost level, codes go to the nearest level, and the scale is then
// refitted: d = Σ x² v x / Σ x² v² minimises the squared error weighted with x².
void quantize_iq4_nl(const float* in, int64_t blocks, void* out) {
  for (int64_t b = 0; b < blocks; ++b, in += kBlock) {
    auto& block = blocks_of<BlockIq4Nl>(out)[b];
    int codes[kBlock] = {};
    const float first = signed_peak(in) / kIq4NlValues[0];
    const float inverse = first != 0.0f ? 1.0f / first : 0.0f;
    double product = 0, square = 0;
    for (int j = 0; j < kBlock; ++j) {
      codes[j] = nearest_iq4_nl(in[j] * inverse);
      const double value = kIq4NlValues[codes[j]], weight = double{in[j]} * in[j];
      product += weight * value * in[j];
      square += weight * value * value;
    }
    block.d = to_half(square > 0 ? static_cast<float>(product / square) : 0.0f);
    set_nibbles(block.q, codes);
  }
}

}  // namespace braid

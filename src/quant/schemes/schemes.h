#pragma once

#include <cstdint>

#include "quant/schemes/block_layouts.h"
#include "tensor/dtype.h"

namespace braid {

// Pack and unpack functions of one format; `blocks` counts storage blocks.
using DequantizeFunction = void (*)(const void* in, int64_t blocks, float* out);
using QuantizeFunction = void (*)(const float* in, int64_t blocks, void* out);

inline float to_float(Half h) {
  return to_float(Float16{static_cast<uint16_t>(h.bytes[0] | h.bytes[1] << 8)});
}
inline Half to_half(float x) {
  const uint16_t bits = to_float16(x).bits;
  return {{static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)}};
}

void dequantize_f32(const void* in, int64_t blocks, float* out);
void dequantize_f16(const void* in, int64_t blocks, float* out);
void dequantize_bf16(const void* in, int64_t blocks, float* out);
void quantize_f32(const float* in, int64_t blocks, void* out);
void quantize_f16(const float* in, int64_t blocks, void* out);
void quantize_bf16(const float* in, int64_t blocks, void* out);

void dequantize_q8_0(const void* in, int64_t blocks, float* out);
void dequantize_q4_0(const void* in, int64_t blocks, float* out);
void dequantize_q4_1(const void* in, int64_t blocks, float* out);
void dequantize_q5_0(const void* in, int64_t blocks, float* out);
void dequantize_q5_1(const void* in, int64_t blocks, float* out);
void dequantize_iq4_nl(const void* in, int64_t blocks, float* out);
void quantize_q8_0(const float* in, int64_t blocks, void* out);
void quantize_q4_0(const float* in, int64_t blocks, void* out);
void quantize_q4_1(const float* in, int64_t blocks, void* out);
void quantize_q5_0(const float* in, int64_t blocks, void* out);
void quantize_q5_1(const float* in, int64_t blocks, void* out);
void quantize_iq4_nl(const float* in, int64_t blocks, void* out);

// Block: a BlockW4 or BlockW4Asym.
template <typename Block>
void dequantize_w4(const void* in, int64_t blocks, float* out);
template <typename Block>
void quantize_w4(const float* in, int64_t blocks, void* out);
// One row.
void dequantize_w8c(const void* in, int64_t blocks, float* out);
void quantize_w8c(const float* in, int64_t blocks, void* out);

void dequantize_q2_k(const void* in, int64_t blocks, float* out);
void dequantize_q3_k(const void* in, int64_t blocks, float* out);
void dequantize_q4_k(const void* in, int64_t blocks, float* out);
void dequantize_q5_k(const void* in, int64_t blocks, float* out);
void dequantize_q6_k(const void* in, int64_t blocks, float* out);

}  // namespace braid

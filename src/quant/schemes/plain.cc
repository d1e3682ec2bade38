#include <cstring>

#include "quant/schemes/schemes.h"

namespace braid {
namespace {

// Elements in files may start at any address.
template <typename T>
T read(const void* in, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(in) + i * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void write(void* out, int64_t i, T value) {
  std::memcpy(static_cast<char*>(out) + i * sizeof(T), &value, sizeof(T));
}

}  // namespace

void dequantize_f32(const void* in, int64_t blocks, float* out) {
  std::memcpy(out, in, blocks * sizeof(float));
}
void dequantize_f16(const void* in, int64_t blocks, float* out) {
  for (int64_t i = 0; i < blocks; ++i) out[i] = to_float(read<Float16>(in, i));
}
void dequantize_bf16(const void* in, int64_t blocks, float* out) {
  for (int64_t i = 0; i < blocks; ++i) out[i] = to_float(read<BFloat16>(in, i));
}
void quantize_f32(const float* in, int64_t blocks, void* out) {
  std::memcpy(out, in, blocks * sizeof(float));
}
void quantize_f16(const float* in, int64_t blocks, void* out) {
  for (int64_t i = 0; i < blocks; ++i) write(out, i, to_float16(in[i]));
}
void quantize_bf16(const float* in, int64_t blocks, void* out) {
  for (int64_t i = 0; i < blocks; ++i) write(out, i, to_bfloat16(in[i]));
}

}  // namespace braid

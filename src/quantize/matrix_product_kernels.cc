#include "quantize/matrix_product_kernels.h"

#include "ops/cpu/simd.h"

namespace braid::BRAID_ISA {
namespace {

constexpr int kVectorBytes = 4 * kLanes;
// As many sums as registers hold beside two vectors of b and one of a.
#if defined(BRAID_ISA_avx512)
constexpr int kRows = 12;
#else
constexpr int kRows = 6;
#endif

template <typename T>
struct Vector;
template <>
struct Vector<float> {
  typedef float Type __attribute__((vector_size(kVectorBytes)));
};
template <>
struct Vector<double> {
  typedef double Type __attribute__((vector_size(kVectorBytes)));
};

// a · b + c, rounded once where the processor can.
BRAID_INLINE Vector<float>::Type multiply_add(Vector<float>::Type a, Vector<float>::Type b,
                                              Vector<float>::Type c) {
  return fma(a, b, c);
}
BRAID_INLINE Vector<double>::Type multiply_add(Vector<double>::Type a, Vector<double>::Type b,
                                               Vector<double>::Type c) {
#if defined(BRAID_ISA_avx512)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(BRAID_ISA_avx2)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

template <typename T>
void tile(int64_t depth, const T* a, const T* b, T alpha, T* c, int64_t c_stride) {
  using V = typename Vector<T>::Type;
  constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
  V sums[kRows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    V b0, b1;
    std::memcpy(&b0, b, sizeof(V));
    std::memcpy(&b1, b + kWidth, sizeof(V));
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const V x = a[i] - V{};
      sums[i][0] = multiply_add(x, b0, sums[i][0]);
      sums[i][1] = multiply_add(x, b1, sums[i][1]);
    }
    a += kRows;
    b += 2 * kWidth;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
      T* const to = c + i * c_stride + part * kWidth;
      V old;
      std::memcpy(&old, to, sizeof(V));
      old += alpha * sums[i][part];
      std::memcpy(to, &old, sizeof(V));
    }
  }
}

void add_scaled(int64_t count, float alpha, const float* x, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    store(y + i, fma(splat(alpha), load(x + i), load(y + i)));
  for (; i < count; ++i) y[i] += alpha * x[i];
}

}  // namespace

const MatrixProductKernels kMatrixProductKernels = {
    .f32 = {kRows, 2 * kVectorBytes / 4, tile<float>},
    .f64 = {kRows, 2 * kVectorBytes / 8, tile<double>},
    .add_scaled = add_scaled,
};

}  // namespace braid::BRAID_ISA

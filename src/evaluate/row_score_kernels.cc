#include "evaluate/row_score_kernels.h"

#include <cstring>

#include "ops/cpu/simd.h"

namespace braid::BRAID_ISA {
namespace {

constexpr int kDoubles = kLanes / 2;
typedef double Vd __attribute__((vector_size(8 * kDoubles)));
typedef int64_t Vl __attribute__((vector_size(8 * kDoubles)));
typedef float Vh __attribute__((vector_size(4 * kDoubles)));  // half a vector of float32

BRAID_INLINE Vd splat_double(double x) { return x - Vd{}; }
BRAID_INLINE Vd load_doubles(const float* p) {
  Vh v;
  std::memcpy(&v, p, sizeof(v));
  return __builtin_convertvector(v, Vd);
}
BRAID_INLINE double sum(Vd v) {
  double total = 0;
  for (int i = 0; i < kDoubles; ++i) total += v[i];
  return total;
}

// exp(x) for x ≤ 0: x = n·ln 2 + r, |r| ≤ ln 2 / 2, and the series of exp(r) to r^13 / 13!, the
// next term being below 2^-57.
BRAID_INLINE Vd exp_below_one(Vd x) {
  const Vd lowest = splat_double(-700);
  const Vl above = x > lowest;
  x = (Vd)(((Vl)x & above) | ((Vl)lowest & ~above));
  const Vd magic = splat_double(0x1.8p52);  // leaves n in the low bits
  const Vd shifted = x * 0x1.71547652b82fep0 + magic;
  const Vd n = shifted - magic;
  const Vd r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
  Vd p = splat_double(1.0 / 6227020800);
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return (Vd)((Vl)p + ((Vl)shifted << 52));
}

BRAID_INLINE double exp_below_one(double x) { return exp_below_one(splat_double(x))[0]; }

double sum_exp(const float* x, int64_t n, double shift) {
  Vd sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kDoubles <= n; i += 4 * kDoubles) {
    for (int j = 0; j < 4; ++j) {
      sums[j] += exp_below_one(load_doubles(x + i + j * kDoubles) - shift);
    }
  }
  double total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) total += exp_below_one(static_cast<double>(x[i]) - shift);
  return total;
}

void compare(const float* p, const float* q, int64_t n, double p_shift, double q_shift,
             double* sums) {
  Vd p_sum[2] = {}, q_sum[2] = {}, weighted[2] = {};
  int64_t i = 0;
  for (; i + 2 * kDoubles <= n; i += 2 * kDoubles) {
    for (int j = 0; j < 2; ++j) {
      const Vd a = load_doubles(p + i + j * kDoubles);
      const Vd b = load_doubles(q + i + j * kDoubles);
      const Vd e = exp_below_one(a - p_shift);
      p_sum[j] += e;
      q_sum[j] += exp_below_one(b - q_shift);
      weighted[j] += e * (a - b);
    }
  }
  sums[0] = sum(p_sum[0] + p_sum[1]);
  sums[1] = sum(q_sum[0] + q_sum[1]);
  sums[2] = sum(weighted[0] + weighted[1]);
  for (; i < n; ++i) {
    const double e = exp_below_one(static_cast<double>(p[i]) - p_shift);
    sums[0] += e;
    sums[1] += exp_below_one(static_cast<double>(q[i]) - q_shift);
    sums[2] += e * (static_cast<double>(p[i]) - static_cast<double>(q[i]));
  }
}

}  // namespace

const RowScoreKernels kRowScoreKernels = {.sum_exp = sum_exp, .compare = compare};

}  // namespace braid::BRAID_ISA

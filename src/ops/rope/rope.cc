#include "ops/rope/rope.h"

#include <cmath>

#include "base/check.h"
#include "ops/cpu/split.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/rope/rope_kernels.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

// A sine and a cosine cost about as much as this many simple operations.
constexpr int64_t kAngleCost = 16;

}  // namespace

void rope_tables(Stream& stream, const IndexList& positions, const TensorView& frequencies,
                 const TensorView& cos, const TensorView& sin) {
  BRAID_CHECK(frequencies.rank() == 1);
  const int64_t tokens = positions.size();
  const int64_t pairs = frequencies.dim(0);
  const Shape expected{tokens, pairs};
  BRAID_CHECK(cos.shape() == expected && sin.shape() == expected, "cos {}, sin {}, expected {}",
              to_string(cos.shape()), to_string(sin.shape()), to_string(expected));
  if (tokens == 0 || pairs == 0) return;
  const OpScope op(stream, "rope_tables", [&] {
    return OpWork{.activation_bytes = 2.0 * 4 * tokens * pairs,
                  .operations = static_cast<double>(kAngleCost * tokens * pairs)};
  });
  if (!stream.is_cpu()) return cuda::rope_tables(stream, positions, frequencies, cos, sin);
  const std::span<const int32_t> at = positions.on_host();
  const float* frequency = frequencies.data<float>();
  split_rows(stream, tokens, pairs * kAngleCost, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float position = static_cast<float>(at[token]);
      float* c = cos.row<float>(token);
      float* s = sin.row<float>(token);
      for (int64_t i = 0; i < pairs; ++i) {
        const float angle = position * frequency[i];
        c[i] = std::cos(angle);
        s[i] = std::sin(angle);
      }
    }
  });
}

void rope(Stream& stream, const TensorView& x, const TensorView& cos, const TensorView& sin,
          int64_t pair_distance) {
  BRAID_CHECK(x.rank() == 3 && cos.rank() == 2, "x {}, cos {}", to_string(x.shape()),
              to_string(cos.shape()));
  BRAID_CHECK(cos.shape() == sin.shape() && cos.dim(0) == x.dim(0), "cos {}, sin {} for x {}",
              to_string(cos.shape()), to_string(sin.shape()), to_string(x.shape()));
  const int64_t heads = x.dim(1);
  const int64_t head_dim = x.dim(2);
  const int64_t pairs = cos.dim(1);
  BRAID_CHECK(pairs <= pair_distance && pair_distance + pairs <= head_dim,
              "{} pairs at distance {} in heads of {}", pairs, pair_distance, head_dim);
  if (x.empty() || pairs == 0) return;
  const OpScope op(stream, "rope", [&] {
    const double turned = static_cast<double>(x.dim(0) * heads * pairs);
    return OpWork{.activation_bytes = 2 * 8 * turned, .operations = 6 * turned};
  });
  if (!stream.is_cpu()) return cuda::rope(stream, x, cos, sin, pair_distance);
  const RopeKernels& kernels = BRAID_KERNELS(kRopeKernels);
  split_rows(stream, x.dim(0), heads * pairs * 2, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      kernels.rotate(x.row<float>(token), heads, head_dim, pairs, pair_distance,
                     cos.row<float>(token), sin.row<float>(token));
    }
  });
}

}  // namespace braid

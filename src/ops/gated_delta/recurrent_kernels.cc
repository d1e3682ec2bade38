#include "ops/gated_delta/recurrent_kernels.h"

#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {
namespace {

void normalize(const float* x, int64_t n, float epsilon, float factor, float* out) {
  Vf sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vf a = load(x + i), b = load(x + i + kLanes);
    sums[0] = fma(a, a, sums[0]);
    sums[1] = fma(b, b, sums[1]);
  }
  for (; i < n; i += kLanes) {
    const Vf a = i + kLanes <= n ? load(x + i) : load_partial(x + i, n - i);
    sums[0] = fma(a, a, sums[0]);
  }
  const double sum = reduce_add(sums[0] + sums[1]);
  const Vf scale = splat(static_cast<float>(factor / __builtin_sqrt(sum + epsilon)));
  for (i = 0; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) * scale);
  if (i < n) {
    store(out + i, load_partial(x + i, n - i) * scale);
    i += kLanes;
  }
  for (; i % kDeltaPadding != 0; ++i) out[i] = 0;
}

// kRows neighbouring rows of a state. What a token does to them is the same instructions wherever
// it comes from: the log, a logged step or another one.
template <int kRows>
struct StateRows {
  float* rows;
  int64_t key_dim;

  // dots[r] = row r · key
  BRAID_INLINE void read(const StateRows& s, const float* key, float (&dots)[kRows]) {
    Vf sums[kRows][2] = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= s.key_dim; i += 2 * kLanes) {
      const Vf k0 = load(key + i), k1 = load(key + i + kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const float* row = s.rows + r * s.key_dim + i;
        sums[r][0] = fma(load(row), k0, sums[r][0]);
        sums[r][1] = fma(load(row + kLanes), k1, sums[r][1]);
      }
    }
    for (; i < s.key_dim; i += kLanes) {
      const Vf k = load(key + i);
      const bool whole = i + kLanes <= s.key_dim;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const float* row = s.rows + r * s.key_dim + i;
        const Vf value = whole ? load(row) : load_partial(row, s.key_dim - i);
        sums[r][0] = fma(value, k, sums[r][0]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) dots[r] = reduce_add(sums[r][0] + sums[r][1]);
  }

  // Row r becomes decay · row r + updates[r] · key; then dots[r] = row r · query, if there is one.
  template <bool kQuery>
  BRAID_INLINE void write(const StateRows& s, const float* key, float decay,
                          const float (&updates)[kRows], const float* query, float (&dots)[kRows]) {
    Vf sums[kRows] = {};
    const Vf factor = splat(decay);
    int64_t i = 0;
    for (; i + kLanes <= s.key_dim; i += kLanes) {
      const Vf k = load(key + i);
      const Vf q = kQuery ? load(query + i) : Vf{};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        float* row = s.rows + r * s.key_dim + i;
        const Vf value = fma(splat(updates[r]), k, factor * load(row));
        store(row, value);
        if constexpr (kQuery) sums[r] = fma(value, q, sums[r]);
      }
    }
    if (i < s.key_dim) {
      const int64_t n = s.key_dim - i;
      const Vf k = load(key + i);
      const Vf q = kQuery ? load(query + i) : Vf{};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        float* row = s.rows + r * s.key_dim + i;
        const Vf value = fma(splat(updates[r]), k, factor * load_partial(row, n));
        store_partial(row, n, value);
        if constexpr (kQuery) sums[r] = fma(value, q, sums[r]);
      }
    }
    if constexpr (kQuery) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) dots[r] = reduce_add(sums[r]);
    }
  }
};

template <int kRows>
void run_rows(const DeltaRows& t, int64_t value) {
  using Rows = StateRows<kRows>;
  Rows rows{t.state + value * t.key_dim, t.key_dim};
  const size_t bytes = static_cast<size_t>(kRows * t.key_dim) * sizeof(float);
  if (t.state_is_zero) std::memset(rows.rows, 0, bytes);

  float updates[kRows], dots[kRows];
  for (int64_t i = 0; i < t.num_replayed; ++i) {
    const float* logged = t.replayed_updates + i * t.log_token_stride + value;
    for (int r = 0; r < kRows; ++r) updates[r] = logged[r];
    Rows::template write<false>(rows, t.replayed_keys + i * t.key_stride, t.replayed_decays[i],
                                updates, nullptr, dots);
  }
  if (t.logged_updates != nullptr) {
    std::memcpy(t.running, rows.rows, bytes);
    rows.rows = t.running;
  }
  for (int64_t i = 0; i < t.num_rows; ++i) {
    const float* key = t.keys + i * t.key_stride;
    const float* values = t.values + i * t.value_stride + value;
    // (decay · S)ᵀ k = decay · Sᵀ k saves a pass over the rows.
    Rows::read(rows, key, dots);
    for (int r = 0; r < kRows; ++r) {
      updates[r] = t.betas[i] * (values[r] - t.decays[i] * dots[r]);
    }
    if (t.logged_updates != nullptr) {
      float* logged = t.logged_updates + i * t.log_token_stride + value;
      for (int r = 0; r < kRows; ++r) logged[r] = updates[r];
    }
    Rows::template write<true>(rows, key, t.decays[i], updates, t.queries + i * t.key_stride, dots);
    float* out = t.out + i * t.out_stride + value;
    for (int r = 0; r < kRows; ++r) out[r] = dots[r];
  }
}

void run(const DeltaRows& t) {
  int64_t value = 0;
  for (; value + kDeltaStateRows <= t.value_dim; value += kDeltaStateRows) {
    run_rows<kDeltaStateRows>(t, value);
  }
  for (; value < t.value_dim; ++value) run_rows<1>(t, value);
}

}  // namespace

const DeltaRecurrentKernels kDeltaRecurrentKernels = {&normalize, &run};

}  // namespace braid::BRAID_ISA

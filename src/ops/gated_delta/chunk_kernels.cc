// The chunk form. With S the state before the chunk, γ_i = g_1 + … + g_i, Γ_ij = e^(γ_i − γ_j):
//   d_i   = β_i·(v_i − e^γ_i·Sᵀk_i) − Σ_{j<i} β_i·(k_i·k_j)·Γ_ij·d_j
//   out_i = e^γ_i·Sᵀq_i + Σ_{j≤i} (q_i·k_j)·Γ_ij·d_j
//   S     ← e^γ_n·S + Σ_i k_i·(e^(γ_n − γ_i)·d_i)ᵀ
// The triangular system for d is solved forwards, by blocks of kTileRows tokens.

#include "ops/gated_delta/chunk_kernels.h"

#include "ops/cpu/simd_math.h"

namespace braid::BRAID_ISA {
namespace {

constexpr int kPanelVectors = 2;
constexpr int kPanel = kPanelVectors * kLanes;
static_assert(kDeltaMaxPanel % kPanel == 0);
#if defined(BRAID_ISA_avx512)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif

template <int kRows>
struct Tile {
  Vf v[kRows][kPanelVectors];
};

// tile[i] += Σ_k a[i · a_stride + k] · b[k · b_stride …]
template <int kRows>
BRAID_INLINE void multiply_add(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                               int64_t depth, Tile<kRows>& tile) {
  for (int64_t k = 0; k < depth; ++k, b += b_stride) {
    const Vf b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vf x = splat(a[i * a_stride + k]);
      tile.v[i][0] = fma(x, b0, tile.v[i][0]);
      tile.v[i][1] = fma(x, b1, tile.v[i][1]);
    }
  }
}

// Calls body.template run<kRows>(first) for tiles that cover [0, rows) in order.
template <typename Body>
BRAID_INLINE void for_tiles(int64_t rows, const Body& body) {
  int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows) body.template run<kTileRows>(i);
  if constexpr (kTileRows > 4) {
    if (i + 4 <= rows) {
      body.template run<4>(i);
      i += 4;
    }
  }
  if (i + 2 <= rows) {
    body.template run<2>(i);
    i += 2;
  }
  if (i < rows) body.template run<1>(i);
}

// The first n of a panel's columns. Apart from the loops that call them, whole panels being the
// rule.
[[gnu::noinline]] void load_some(const float* p, int64_t n, Vf (&v)[kPanelVectors]) {
  float columns[kPanel] = {};
  for (int64_t j = 0; j < n; ++j) columns[j] = p[j];
  v[0] = load(columns);
  v[1] = load(columns + kLanes);
}
[[gnu::noinline]] void store_some(float* p, int64_t n, const Vf (&v)[kPanelVectors]) {
  float columns[kPanel];
  store(columns, v[0]);
  store(columns + kLanes, v[1]);
  for (int64_t j = 0; j < n; ++j) p[j] = columns[j];
}
BRAID_INLINE void load_columns(const float* p, int64_t n, Vf (&v)[kPanelVectors]) {
  if (n < kPanel) return load_some(p, n, v);
  v[0] = load(p);
  v[1] = load(p + kLanes);
}
BRAID_INLINE void store_columns(float* p, int64_t n, const Vf (&v)[kPanelVectors]) {
  if (n < kPanel) return store_some(p, n, v);
  store(p, v[0]);
  store(p + kLanes, v[1]);
}

void load_panels(const float* state, int64_t value_dim, int64_t key_dim, float* panels) {
  for (int64_t first = 0; first < value_dim; first += kPanel, panels += key_dim * kPanel) {
    const int64_t values = value_dim - first < kPanel ? value_dim - first : kPanel;
    for (int64_t k = 0; k < key_dim; ++k) {
      float* to = panels + k * kPanel;
      const float* from = state + first * key_dim + k;
      for (int64_t v = 0; v < values; ++v) to[v] = from[v * key_dim];
      for (int64_t v = values; v < kPanel; ++v) to[v] = 0;
    }
  }
}

void store_panels(const float* panels, int64_t value_dim, int64_t key_dim, float* state) {
  for (int64_t v = 0; v < value_dim; ++v) {
    const float* from = panels + v / kPanel * key_dim * kPanel + v % kPanel;
    float* to = state + v * key_dim;
    for (int64_t k = 0; k < key_dim; ++k) to[k] = from[k * kPanel];
  }
}

// Rows of `products` up to the diagonal, and a little beyond.
struct Products {
  const DeltaChunk& chunk;
  const float* left;
  float* products;

  template <int kRows>
  [[gnu::noinline]] void run(int64_t i) const {
    for (int64_t j = 0; j < i + kRows; j += kPanel) {
      Tile<kRows> sum{};
      multiply_add<kRows>(left + i * chunk.key_stride, chunk.key_stride, chunk.keys_transposed + j,
                          kDeltaChunkStride, chunk.key_dim, sum);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        float* to = products + (i + r) * kDeltaChunkStride + j;
        store(to, sum.v[r][0]);
        store(to + kLanes, sum.v[r][1]);
      }
    }
  }
};

void products(const DeltaChunk& chunk) {
  for (int64_t k = 0; k < chunk.key_dim; ++k) {
    float* to = chunk.keys_transposed + k * kDeltaChunkStride;
    for (int64_t i = 0; i < chunk.num_tokens; ++i) to[i] = chunk.keys[i * chunk.key_stride + k];
    for (int64_t i = chunk.num_tokens; i < kDeltaChunkStride; ++i) to[i] = 0;
  }
  for_tiles(chunk.num_tokens, Products{chunk, chunk.keys, chunk.key_products});
  for_tiles(chunk.num_tokens, Products{chunk, chunk.queries, chunk.query_products});
}

// couplings_ij = β_i·(k_i·k_j)·Γ_ij and weights_ij = (q_i·k_j)·Γ_ij, for j <= i. The exponents of
// later j, which would overflow, are not taken (but up to the end of a vector, and never read).
void couple(const DeltaChunk& chunk, const DeltaChunkHead& head) {
  for (int64_t i = 0; i < chunk.num_tokens; ++i) {
    const int64_t row = i * kDeltaChunkStride;
    const Vf beta = splat(head.betas[i]);
    for (int64_t j = 0; j <= i; j += kLanes) {
      // The difference of large sums, taken in double precision, is as exact as its terms.
      float exponents[kLanes];
      for (int64_t l = 0; l < kLanes; ++l) {
        exponents[l] =
            j + l <= i ? static_cast<float>(head.log_decays[i] - head.log_decays[j + l]) : 0.0f;
      }
      const Vf decay = exp(load(exponents));
      store(head.couplings + row + j, beta * (load(chunk.key_products + row + j) * decay));
      store(head.weights + row + j, load(chunk.query_products + row + j) * decay);
    }
  }
}

// A panel of values: everything below depends on its own columns of the state only.
struct Panel {
  const DeltaChunk& chunk;
  const DeltaChunkHead& head;
  float* state;  // [key_dim, kPanel]
  int64_t first_value;
  int64_t values;
};

struct Updates : Panel {
  template <int kRows>
  [[gnu::noinline]] void run(int64_t i) const {
    Tile<kRows> d{}, coupled{};
    multiply_add<kRows>(chunk.keys + i * chunk.key_stride, chunk.key_stride, state, kPanel,
                        chunk.key_dim, d);
    const float* couplings = head.couplings + i * kDeltaChunkStride;
    multiply_add<kRows>(couplings, kDeltaChunkStride, head.updates, kPanel, i, coupled);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Vf v[kPanelVectors];
      load_columns(head.values + (i + r) * head.value_stride + first_value, values, v);
      const Vf beta = splat(head.betas[i + r]);
      const Vf decay = splat(head.decays[i + r]);
#pragma GCC unroll 2
      for (int j = 0; j < kPanelVectors; ++j) {
        d.v[r][j] = beta * (v[j] - decay * d.v[r][j]) - coupled.v[r][j];
      }
#pragma GCC unroll 8
      for (int s = 0; s < r; ++s) {
        const Vf coupling = splat(-couplings[r * kDeltaChunkStride + i + s]);
        d.v[r][0] = fma(coupling, d.v[s][0], d.v[r][0]);
        d.v[r][1] = fma(coupling, d.v[s][1], d.v[r][1]);
      }
      float* to = head.updates + (i + r) * kPanel;
      store(to, d.v[r][0]);
      store(to + kLanes, d.v[r][1]);
    }
  }
};

struct Outputs : Panel {
  template <int kRows>
  [[gnu::noinline]] void run(int64_t i) const {
    Tile<kRows> out{};
    multiply_add<kRows>(chunk.queries + i * chunk.key_stride, chunk.key_stride, state, kPanel,
                        chunk.key_dim, out);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vf decay = splat(head.decays[i + r]);
      out.v[r][0] *= decay;
      out.v[r][1] *= decay;
    }
    const float* weights = head.weights + i * kDeltaChunkStride;
    multiply_add<kRows>(weights, kDeltaChunkStride, head.updates, kPanel, i, out);
#pragma GCC unroll 8
    for (int s = 0; s < kRows; ++s) {
      const float* d = head.updates + (i + s) * kPanel;
      const Vf d0 = load(d), d1 = load(d + kLanes);
#pragma GCC unroll 8
      for (int r = s; r < kRows; ++r) {
        const Vf weight = splat(weights[r * kDeltaChunkStride + i + s]);
        out.v[r][0] = fma(weight, d0, out.v[r][0]);
        out.v[r][1] = fma(weight, d1, out.v[r][1]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      store_columns(head.out + (i + r) * head.out_stride + first_value, values, out.v[r]);
    }
  }
};

struct NextState : Panel {
  template <int kRows>
  [[gnu::noinline]] void run(int64_t k) const {
    const Vf decay = splat(head.decays[chunk.num_tokens - 1]);
    Tile<kRows> sum;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      sum.v[r][0] = decay * load(state + (k + r) * kPanel);
      sum.v[r][1] = decay * load(state + (k + r) * kPanel + kLanes);
    }
    multiply_add<kRows>(chunk.keys_transposed + k * kDeltaChunkStride, kDeltaChunkStride,
                        head.updates, kPanel, chunk.num_tokens, sum);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      store(state + (k + r) * kPanel, sum.v[r][0]);
      store(state + (k + r) * kPanel + kLanes, sum.v[r][1]);
    }
  }
};

void run(const DeltaChunk& chunk, const DeltaChunkHead& head) {
  couple(chunk, head);
  float* state = head.panels;
  for (int64_t first = 0; first < head.value_dim; first += kPanel) {
    const int64_t left = head.value_dim - first;
    const Panel panel{chunk, head, state, first, left < kPanel ? left : kPanel};
    for_tiles(chunk.num_tokens, Updates{panel});
    for_tiles(chunk.num_tokens, Outputs{panel});
    for (int64_t i = 0; i < chunk.num_tokens; ++i) {
      float* d = head.updates + i * kPanel;
      const Vf decay = splat(head.decays_to_end[i]);
      store(d, load(d) * decay);
      store(d + kLanes, load(d + kLanes) * decay);
    }
    for_tiles(chunk.key_dim, NextState{panel});
    state += chunk.key_dim * kPanel;
  }
}

}  // namespace

const DeltaChunkKernels kDeltaChunkKernels = {&load_panels, &store_panels, &products, &run};

}  // namespace braid::BRAID_ISA

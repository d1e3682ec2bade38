#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/gated_delta/gated_delta.h"
#include "ops/op_test.h"
#include "reference/gated_delta.h"

namespace braid {

struct DeltaDims {
  int64_t key_heads = 2;
  int64_t ratio = 2;
  int64_t key_dim = 16;
  int64_t value_dim = 24;
  ValueHeadOrder order = ValueHeadOrder::kGrouped;

  int64_t value_heads() const { return key_heads * ratio; }
  int64_t key_head(int64_t value_head) const {
    return order == ValueHeadOrder::kGrouped ? value_head / ratio : value_head % key_heads;
  }
};

enum class DeltaData {
  kModel,     // as measured on real models: v to 25, g from nearly 0 to −316
  kParallel,  // nearly parallel keys, β nearly 1, g nearly 0: what exposes a bad inverse
  kMixed,     // the same with a strongly negative g now and then
};

// Rows for the op, apart in memory.
struct DeltaProblem {
  // aligned: rows begin at multiples of 16 bytes.
  DeltaProblem(const DeltaDims& d, int64_t tokens, DeltaData data, Random& random,
               bool aligned = false)
      : dims(d),
        q({tokens, d.key_heads, d.key_dim}, gap(random, aligned)),
        k({tokens, d.key_heads, d.key_dim}, gap(random, aligned)),
        v({tokens, d.value_heads(), d.value_dim}, gap(random, aligned)),
        a({tokens, d.value_heads()}, random.integer(0, 3)),
        b({tokens, d.value_heads()}, random.integer(0, 3)),
        rate(DType::kF32, {d.value_heads()}, op_test_device),
        dt_bias(DType::kF32, {d.value_heads()}, op_test_device) {
    q.fill_normal(random);
    k.fill_normal(random);
    v.fill_normal(random, data == DeltaData::kModel ? 6 : 1);
    b.fill_normal(random, 2);
    for (int64_t h = 0; h < d.value_heads(); ++h) {
      rate.data<float>()[h] = data == DeltaData::kModel
                                  ? -std::exp(random.uniform(std::log(1e-4f), std::log(16.0f)))
                                  : -1e-6f;
      dt_bias.data<float>()[h] = random.uniform(-4, 4);
    }
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < d.value_heads(); ++h) {
        a.row(t)[h] = random.uniform(-8, data == DeltaData::kModel ? 16 : 1);
        if (data == DeltaData::kMixed && random.integer(0, 20) == 0) {
          a.row(t)[h] = std::exp(random.uniform(0, std::log(3e8f)));  // g to −300
        }
        if (data != DeltaData::kModel) b.row(t)[h] = random.uniform(8, 12);
        for (int64_t i = 0; i < d.value_dim; ++i) {
          float& x = v.row(t)[h * d.value_dim + i];
          x = std::clamp(x, -25.0f, 25.0f);
        }
      }
      if (data == DeltaData::kModel) continue;
      for (int64_t i = 0; i < d.key_heads * d.key_dim; ++i) {
        k.row(t)[i] = static_cast<float>(i % 5) - 1.7f + 0.02f * random.normal();
      }
    }
  }

  static int64_t gap(Random& random, bool aligned) {
    return aligned ? 4 * random.integer(0, 1) : random.integer(0, 5);
  }

  GatedDeltaInputs inputs() const { return {q, k, v, b, a, rate, dt_bias}; }
  int64_t tokens() const { return q.view().dim(0); }

  DeltaDims dims;
  PaddedTensor q, k, v, a, b;
  Tensor rate, dt_bias;
};

// All of it starts as NaN.
struct DeltaStore {
  DeltaStore(const DeltaDims& d, int64_t slots, int64_t logged)
      : states(DType::kF32, {slots, d.value_heads(), d.value_dim, d.key_dim}, op_test_device),
        logged_keys(DType::kF32, {slots, logged, d.key_heads, d.key_dim}, op_test_device),
        logged_updates(DType::kF32, {slots, logged, d.value_heads(), d.value_dim}, op_test_device),
        logged_decays(DType::kF32, {slots, logged, d.value_heads()}, op_test_device) {
    for (const Tensor* t : {&states, &logged_keys, &logged_updates, &logged_decays}) {
      std::ranges::fill(t->view().span<float>(), kNan);
    }
    layer.states = states;
    if (logged > 0) {
      layer.logged_keys = logged_keys;
      layer.logged_updates = logged_updates;
      layer.logged_decays = logged_decays;
    }
  }
  std::vector<uint32_t> state_bits(int64_t slot) const { return bits(states, slot); }
  std::vector<uint32_t> slot_bits(int64_t slot) const {
    std::vector<uint32_t> all = state_bits(slot);
    if (logged_keys.view().empty()) return all;
    for (const Tensor* t : {&logged_keys, &logged_updates, &logged_decays}) {
      const std::vector<uint32_t> more = bits(*t, slot);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
  void copy_slot(int64_t from, int64_t to) const {
    for (const Tensor* t : {&states, &logged_keys, &logged_updates, &logged_decays}) {
      if (t->view().empty()) continue;
      const int64_t n = t->view().row_stride();
      std::copy_n(t->view().row<float>(from), n, t->view().row<float>(to));
    }
  }

  Tensor states, logged_keys, logged_updates, logged_decays;
  RecurrentLayer layer;

 private:
  static std::vector<uint32_t> bits(const Tensor& tensor, int64_t slot) {
    const float* row = tensor.view().row<float>(slot);
    std::vector<uint32_t> bits(static_cast<size_t>(tensor.view().row_stride()));
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = std::bit_cast<uint32_t>(row[i]);
    return bits;
  }
};

// The rule in double precision, and how far float32 may be from it.
//
// A token maps a state row s (key_dim numbers of one value) to (I − β·k·kᵀ)·e^g·s + β·v·k. As
// ‖k‖ <= 1 and β <= 1 the map never lengthens an error, and shortens it by e^g at least once β
// is small; what a token adds is its own rounding errors. These are sums of products: of n terms,
// √n·u times their size (independent errors, u = 2⁻²⁴), where the size is of the row, of v and d,
// and, for chunks, of the up to 64 earlier d of the chunk that are summed. Errors of different
// tokens add up like independent ones too. All of it holds but for a probability of 2·exp(−λ²/2)
// an operation (Higham, Mary: "A new approach to probabilistic rounding error analysis", 2019).
class DeltaReference {
 public:
  explicit DeltaReference(const DeltaDims& d)
      : dims(d), state_(d.value_heads()), variance_(d.value_heads()), recent_(d.value_heads()) {
    for (int64_t h = 0; h < d.value_heads(); ++h) {
      state_[h].assign(d.value_dim * d.key_dim, 0);
      variance_[h].assign(d.value_dim, 0);
      recent_[h].assign(d.value_dim, 0);
    }
  }
  void start_from(const float* state) {
    for (int64_t h = 0; h < dims.value_heads(); ++h) {
      for (double& x : state_[h]) x = *state++;
    }
  }

  // Row t of the problem; out gets [value_heads, value_dim] and how exact they must be.
  void token(const DeltaProblem& p, int64_t t, std::vector<double>& out,
             std::vector<double>& out_bounds) {
    out.clear();
    out_bounds.clear();
    for (int64_t h = 0; h < dims.value_heads(); ++h) {
      const int64_t offset = dims.key_head(h) * dims.key_dim;
      const std::vector<double> key =
          reference::l2_normalized(p.k.row(t) + offset, dims.key_dim, 1e-6f);
      std::vector<double> query =
          reference::l2_normalized(p.q.row(t) + offset, dims.key_dim, 1e-6f);
      for (double& x : query) x /= std::sqrt(static_cast<double>(dims.key_dim));
      const double beta = reference::sigmoid(p.b.row(t)[h]);
      const double g = p.rate.data<float>()[h] *
                       reference::softplus(double{p.a.row(t)[h]} + p.dt_bias.data<float>()[h]);
      const std::vector<double> sizes = row_sizes(h);
      std::vector<double> d, outs;
      const float* values = p.v.row(t) + h * dims.value_dim;
      reference::gated_delta_token(key, query, values, beta, g, state_[h], d, outs);
      const std::vector<double> new_sizes = row_sizes(h);
      for (int64_t v = 0; v < dims.value_dim; ++v) {
        recent_[h][v] = recent_[h][v] * std::exp(2 * g) + d[v] * d[v];
        const double size = std::max(sizes[v], new_sizes[v]) + std::abs(values[v]) +
                            std::abs(d[v]) + std::sqrt(recent_[h][v]);
        const double terms = static_cast<double>(dims.key_dim + 64);
        const double own = (std::sqrt(terms) + 8) * kUnitRoundoff * size;
        variance_[h][v] = variance_[h][v] * std::exp(2 * g) + own * own;
        out.push_back(outs[v]);
        out_bounds.push_back(kLambda * std::sqrt(variance_[h][v] + own * own) /
                             std::sqrt(static_cast<double>(dims.key_dim)));
      }
    }
  }

  // Each row of the state, by its length.
  void expect_state(const float* state) const {
    for (int64_t h = 0; h < dims.value_heads(); ++h) {
      for (int64_t v = 0; v < dims.value_dim; ++v) {
        double error = 0;
        for (int64_t k = 0; k < dims.key_dim; ++k, ++state) {
          const double difference = *state - state_[h][v * dims.key_dim + k];
          error += difference * difference;
        }
        // Subnormal numbers lose their last digits.
        ASSERT_LE(std::sqrt(error), kLambda * std::sqrt(variance_[h][v]) + 1e-40)
            << "value head " << h << ", value " << v;
      }
    }
  }

  // For outputs, a matter of all rows, too.
  static constexpr double kLambda = 6;

 private:
  std::vector<double> row_sizes(int64_t h) const {
    std::vector<double> sizes(dims.value_dim);
    for (int64_t v = 0; v < dims.value_dim; ++v) {
      double sum = 0;
      for (int64_t k = 0; k < dims.key_dim; ++k) {
        sum += state_[h][v * dims.key_dim + k] * state_[h][v * dims.key_dim + k];
      }
      sizes[v] = std::sqrt(sum);
    }
    return sizes;
  }

  DeltaDims dims;
  std::vector<std::vector<double>> state_;     // [value head][value_dim · key_dim]
  std::vector<std::vector<double>> variance_;  // [value head][value_dim], of a row's error / λ
  std::vector<std::vector<double>> recent_;    // [value head][value_dim]: Σ d², decayed
};

}  // namespace braid

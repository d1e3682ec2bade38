#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace braid::reference {

// Keys and values of one sequence by position: [positions, kv_heads, head_dim].
struct DenseKv {
  int64_t kv_heads = 1;
  int64_t head_dim = 0;
  std::vector<float> keys;
  std::vector<float> values;

  const float* key(int64_t position, int64_t head) const {
    return keys.data() + (position * kv_heads + head) * head_dim;
  }
  const float* value(int64_t position, int64_t head) const {
    return values.data() + (position * kv_heads + head) * head_dim;
  }
};

struct AttentionRow {
  std::vector<double> out;        // [head_dim]
  std::vector<double> magnitude;  // Σ p_j·|v_j|, the scale of rounding errors in the sum
  std::vector<double> weights;    // p_j, [num_keys], the last one of the query's own key
  double score_magnitude = 0;     // largest scale·Σ|q_i·k_i|, the same for scores
  double score_norm = 0;    // largest scale·√Σ(q_i·k_i)², of independent errors of factors
  double score_spread = 0;  // largest distance of a score from the largest score
  int64_t num_keys = 0;
};

// One query at `position` with KV head `head`; window 0: all keys up to its own.
inline AttentionRow attention_row(const float* q, const DenseKv& kv, int64_t position, int64_t head,
                                  double scale, int64_t window) {
  const int64_t begin = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  AttentionRow row;
  row.num_keys = position + 1 - begin;
  std::vector<double> scores(row.num_keys);
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t j = begin; j <= position; ++j) {
    double score = 0;
    double magnitude = 0;
    double squares = 0;
    for (int64_t d = 0; d < kv.head_dim; ++d) {
      const double product = double{q[d]} * kv.key(j, head)[d];
      score += product;
      magnitude += std::abs(product);
      squares += product * product;
    }
    scores[j - begin] = score * scale;
    largest = std::max(largest, score * scale);
    row.score_magnitude = std::max(row.score_magnitude, magnitude * std::abs(scale));
    row.score_norm = std::max(row.score_norm, std::sqrt(squares) * std::abs(scale));
  }
  double sum = 0;
  for (double& score : scores) {
    row.score_spread = std::max(row.score_spread, largest - score);
    score = std::exp(score - largest);
    sum += score;
  }
  for (const double score : scores) row.weights.push_back(score / sum);
  row.out.assign(kv.head_dim, 0);
  row.magnitude.assign(kv.head_dim, 0);
  for (int64_t j = begin; j <= position; ++j) {
    for (int64_t d = 0; d < kv.head_dim; ++d) {
      const double term = row.weights[j - begin] * kv.value(j, head)[d];
      row.out[d] += term;
      row.magnitude[d] += std::abs(term);
    }
  }
  return row;
}

}  // namespace braid::reference

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

// A token that may still be drawn. Lists of candidates are in ascending order of token.
struct Candidate {
  float logit = 0;
  int32_t token = 0;
  float weight = 0;  // unnormalised probability
};

// The total order behind every choice: higher logit first, of equals the lower id.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// All filters are exact and work by selection; none sorts the vocabulary.

// The k first of `logits` in rank (all if fewer are above -inf), without weights. k > 0.
void select_top_k(std::span<const float> logits, int64_t k, std::vector<Candidate>& candidates);

// The candidates whose logit is above -inf.
void select_all(std::span<const float> logits, std::vector<Candidate>& candidates);

// Keeps the fewest first in rank that hold at least `top_p` of the total mass (draw_math.h).
void keep_top_p(std::vector<Candidate>& candidates, double top_p, std::vector<Candidate>& scratch);

// Keeps those with at least `min_p` times the largest weight.
void keep_min_p(std::vector<Candidate>& candidates, double min_p);

}  // namespace braid

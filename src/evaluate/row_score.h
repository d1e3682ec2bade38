#pragma once

#include <cstdint>
#include <span>

namespace braid {

// How a row of logits predicts the token that follows, and how it differs from a reference's.
// Natural logarithms, all sums in float64.
struct TokenScore {
  double nll = 0;   // −log softmax(logits)[target]
  int32_t top = 0;  // the likeliest token, of equals the lowest id
  // With a reference:
  double reference_nll = 0;
  double kl = 0;  // Σ p_ref · log(p_ref / p), at least 0; exactly 0 for equal logits
  int32_t reference_top = 0;
};

// logits: finite, [vocab]. target: an index into them.
TokenScore score_row(std::span<const float> logits, int32_t target);
// reference: logits of the same vocabulary.
TokenScore score_row(std::span<const float> logits, std::span<const float> reference,
                     int32_t target);

}  // namespace braid

#include "evaluate/row_score.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "evaluate/row_score_kernels.h"
#include "ops/logits/row_scan.h"

namespace braid {

TokenScore score_row(std::span<const float> logits, int32_t target) {
  const auto n = static_cast<int64_t>(logits.size());
  TokenScore score;
  score.top = argmax(logits);
  BRAID_CHECK(score.top >= 0 && target >= 0 && target < n, "token {} of {}", target, n);
  const double shift = logits[score.top];
  const double sum = BRAID_KERNELS(kRowScoreKernels).sum_exp(logits.data(), n, shift);
  score.nll = std::log(sum) + (shift - logits[target]);
  return score;
}

TokenScore score_row(std::span<const float> logits, std::span<const float> reference,
                     int32_t target) {
  const auto n = static_cast<int64_t>(logits.size());
  BRAID_CHECK(logits.size() == reference.size(), "{} logits beside {}", n, reference.size());
  TokenScore score;
  score.top = argmax(logits);
  score.reference_top = argmax(reference);
  BRAID_CHECK(score.top >= 0 && score.reference_top >= 0 && target >= 0 && target < n,
              "token {} of {}", target, n);
  const double shift = logits[score.top];
  const double reference_shift = reference[score.reference_top];
  double sums[3];
  BRAID_KERNELS(kRowScoreKernels)
      .compare(reference.data(), logits.data(), n, reference_shift, shift, sums);
  const double log_sum = std::log(sums[1]), reference_log_sum = std::log(sums[0]);
  score.nll = log_sum + (shift - logits[target]);
  score.reference_nll = reference_log_sum + (reference_shift - reference[target]);
  // Σ p_ref (l_ref − l) − (lse_ref − lse)
  score.kl = std::max(
      0.0, sums[2] / sums[0] - ((reference_shift - shift) + (reference_log_sum - log_sum)));
  return score;
}

}  // namespace braid

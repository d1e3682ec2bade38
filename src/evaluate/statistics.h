#pragma once

#include <cstdint>
#include <span>

namespace braid {

// A mean with its 95 % confidence interval, mean ± half_width.
struct Estimate {
  double mean = 0;
  double half_width = 0;  // NaN: fewer than two units, so nothing is known
  int64_t num_units = 0;
};

// What one unit (a chunk of text, a document) contributes to a mean over items.
struct UnitSum {
  double sum = 0;
  double weight = 0;  // items, above 0
};

// Σ sum / Σ weight over units that are taken to be independent draws. The interval is Student's t
// with the linearised variance of a ratio: s² = n / (n − 1) · Σ (sum_i − mean · weight_i)² / (Σ
// weight)² (Cochran, Sampling Techniques, section 2.11). For equal weights this is the usual
// t-interval of a mean.
Estimate estimate_ratio(std::span<const UnitSum> units);

// The p-quantile of Student's t distribution with `degrees` ≥ 1 degrees of freedom, 0.5 ≤ p < 1.
double student_t_quantile(double p, double degrees);

}  // namespace braid

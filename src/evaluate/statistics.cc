#include "evaluate/statistics.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace braid {
namespace {

// The regularised incomplete beta function by Lentz's method on its continued fraction (Numerical
// Recipes, section 6.4). For x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr int kMostTerms = 10000;
  constexpr double kTiny = 1e-300, kEnough = 1e-15;
  const auto bounded = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1;
  double d = 1 / bounded(1 - (a + b) * x / (a + 1));
  double fraction = d;
  for (int m = 1; m <= kMostTerms; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / bounded(1 + even * d);
    c = bounded(1 + even / c);
    fraction *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / bounded(1 + odd * d);
    c = bounded(1 + odd / c);
    fraction *= d * c;
    if (std::abs(d * c - 1) < kEnough) break;
  }
  return fraction;
}

double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

// P(T > t) for t ≥ 0.
double upper_tail(double t, double degrees) {
  return 0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

}  // namespace

double student_t_quantile(double p, double degrees) {
  BRAID_CHECK(p >= 0.5 && p < 1 && degrees >= 1, "p {}, {} degrees of freedom", p, degrees);
  double low = 0, high = 1;
  while (upper_tail(high, degrees) > 1 - p) high *= 2;
  while (high - low > 1e-12 * high) {
    const double middle = low + (high - low) / 2;
    (upper_tail(middle, degrees) > 1 - p ? low : high) = middle;
  }
  return (low + high) / 2;
}

Estimate estimate_ratio(std::span<const UnitSum> units) {
  Estimate estimate;
  estimate.num_units = static_cast<int64_t>(units.size());
  estimate.half_width = std::numeric_limits<double>::quiet_NaN();
  double sum = 0, weight = 0;
  for (const UnitSum& unit : units) {
    sum += unit.sum;
    weight += unit.weight;
  }
  if (!(weight > 0)) {
    estimate.mean = std::numeric_limits<double>::quiet_NaN();
    return estimate;
  }
  estimate.mean = sum / weight;
  const auto n = static_cast<double>(units.size());
  if (units.size() < 2) return estimate;
  double squares = 0;
  for (const UnitSum& unit : units) {
    const double rest = unit.sum - estimate.mean * unit.weight;
    squares += rest * rest;
  }
  estimate.half_width =
      student_t_quantile(0.975, n - 1) * std::sqrt(n / (n - 1) * squares) / weight;
  return estimate;
}

}  // namespace braid

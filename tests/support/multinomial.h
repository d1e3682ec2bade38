#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace braid::testing {

// How unlikely it is by chance that draws come out so, as a natural logarithm: at most
// -nD + f·(1 + ln(nD / f)) where nD > f, with n draws, D the relative entropy of their frequencies
// to the probabilities and f degrees of freedom, whatever n and the probabilities are (Agrawal,
// "Finite-sample concentration of the multinomial in relative entropy", 2020).
// cells: probability and count of each outcome; the probabilities sum to one.
inline double log_chance(const std::vector<std::pair<double, int64_t>>& cells) {
  double draws = 0, freedom = -1, divergence = 0;
  for (const auto& [probability, count] : cells) {
    draws += static_cast<double>(count);
    if (probability > 0) ++freedom;
  }
  for (const auto& [probability, count] : cells) {
    if (count == 0) continue;
    if (probability == 0) return -std::numeric_limits<double>::infinity();
    const auto times = static_cast<double>(count);
    divergence += times * std::log(times / (probability * draws));
  }
  if (freedom <= 0 || divergence <= freedom) return 0;
  return -divergence + freedom * (1 + std::log(divergence / freedom));
}

}  // namespace braid::testing

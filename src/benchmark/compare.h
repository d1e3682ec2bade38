#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmark/result.h"

namespace braid {

// The same row of two runs.
struct RowComparison {
  std::string key;
  std::string unit;   // "tok/s" or "calls/s"
  double before = 0;  // rates by the medians
  double after = 0;
  double noise = 0;  // the larger spread of the two

  double ratio() const { return after / before; }  // above 1: faster
};

struct BenchComparison {
  std::vector<RowComparison> rows;                   // the largest loss first
  std::vector<std::string> only_before, only_after;  // keys

  // Rows slower by more than `tolerance` (0.1: a tenth).
  std::vector<RowComparison> slower(double tolerance) const;
};

BenchComparison compare(const BenchResult& before, const BenchResult& after);

}  // namespace braid

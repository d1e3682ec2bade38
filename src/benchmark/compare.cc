#include "benchmark/compare.h"

#include <algorithm>

namespace braid {
namespace {

const BenchRow* find_row(const BenchResult& result, const std::string& key) {
  for (const BenchRow& row : result.rows) {
    if (row.key() == key) return &row;
  }
  return nullptr;
}

}  // namespace

std::vector<RowComparison> BenchComparison::slower(double tolerance) const {
  std::vector<RowComparison> found;
  for (const RowComparison& row : rows) {
    if (row.ratio() < 1 - tolerance) found.push_back(row);
  }
  return found;
}

BenchComparison compare(const BenchResult& before, const BenchResult& after) {
  BenchComparison comparison;
  for (const BenchRow& row : before.rows) {
    const BenchRow* other = find_row(after, row.key());
    if (other == nullptr) {
      comparison.only_before.push_back(row.key());
      continue;
    }
    comparison.rows.push_back({.key = row.key(),
                               .unit = row.tokens > 0 ? "tok/s" : "calls/s",
                               .before = row.rate(),
                               .after = other->rate(),
                               .noise = std::max(row.spread(), other->spread())});
  }
  for (const BenchRow& row : after.rows) {
    if (find_row(before, row.key()) == nullptr) comparison.only_after.push_back(row.key());
  }
  std::stable_sort(
      comparison.rows.begin(), comparison.rows.end(),
      [](const RowComparison& a, const RowComparison& b) { return a.ratio() < b.ratio(); });
  return comparison;
}

}  // namespace braid

#pragma once

#include <string>

#include "benchmark/compare.h"
#include "benchmark/result.h"

namespace braid {

// What was measured on what, and the ceilings; then a table of the rows.
std::string bench_table(const BenchResult& result);

std::string comparison_table(const BenchComparison& comparison);

}  // namespace braid

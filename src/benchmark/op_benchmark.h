#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/model_benchmark.h"
#include "benchmark/result.h"

namespace braid {

struct OpBenchmarkOptions {
  std::string filter;              // regular expression that part of a name must match; empty: all
  std::vector<int> threads = {0};  // 0: one per processor
  int repetitions = 5;
};

// Names of the cases, as a filter sees them: "linear q4_0 15360x3840 n1".
std::vector<std::string> op_case_names();

// Single ops at the shapes of real models; weights are too many for the caches. A repetition is the
// fastest of several calls. Throws UsageError for a filter that is no regular expression or matches
// nothing.
std::vector<BenchRow> run_op_benchmark(const OpBenchmarkOptions& options,
                                       const BenchProgressFunction& progress);

}  // namespace braid

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmark/ceilings.h"
#include "benchmark/environment.h"
#include "tensor/profiler.h"

namespace braid {

// Work and time of one op (or of all), as a Profiler::Entry that owns its names.
struct OpResult {
  std::string op, operand, layer;
  Profiler::Entry cost;  // its names are empty
};

// One measured row.
struct BenchRow {
  std::string test;    // "pp512", "tg64", "job256+32", or the name of an op's case
  std::string phase;   // "prefill", "decode", "job", "op"
  int64_t tokens = 0;  // that a repetition brings, all sequences together; 0: an op's case
  int64_t batch = 1;   // sequences side by side
  int64_t depth = 0;   // tokens in the cache before
  int threads = 0;
  std::vector<double> seconds;  // of each repetition, in the order measured
  Profiler::Entry work;         // of one repetition; its time is that of the profiled one
  std::vector<OpResult> ops;    // the same by op, longest first
  std::optional<Profiler::DeviceCost> profile_cost;  // on a device: what profiling it cost

  // "pp512 b1 t2 d0": what makes a row comparable with one of another run.
  std::string key() const;
  double median_seconds() const;
  double min_seconds() const;
  // (max - min) / median of the repetitions.
  double spread() const;
  // Tokens per second (op cases: calls per second), by the median and by the slowest.
  double rate() const;
  double min_rate() const;
};

struct BenchResult {
  Environment environment;
  std::string model;  // origin, or "ops"
  std::string family;
  std::string weights;             // "dummy q4_0x16", "q8_0 of the file"
  std::string compute;             // as --compute
  std::vector<Ceilings> ceilings;  // one for each number of threads
  std::vector<BenchRow> rows;

  // nullptr: none for this number of threads.
  const Ceilings* ceilings_for(int threads) const;
};

// What binds a row, and how near it came: bound seconds / median seconds.
struct RowBound {
  std::string what;
  double share = 0;
};
RowBound bound_of(const BenchRow& row, const BenchResult& result);

// {"median", "min", …} of values that are not empty.
double median(std::vector<double> values);

// JSON text, with everything above and the derived figures beside them. Read ignores the derived.
std::string to_json(const BenchResult& result);
// Throws Error naming `origin` and the field at fault.
BenchResult bench_result_from_json(const std::string& text, const std::string& origin);

// The ops of a profiler that has collected all, longest first.
std::vector<OpResult> op_results(const Profiler& profiler);

}  // namespace braid

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmark/result.h"
#include "cache/cache_plan.h"
#include "models/model.h"
#include "ops/linear/linear.h"

namespace braid {

// Prompts of so many tokens side by side, then steps of one token each.
struct BenchJob {
  int64_t sequences = 1;
  int64_t prompt = 0;
  int64_t generate = 0;
};

struct ModelBenchmarkOptions {
  std::vector<int64_t> prompts = {512};       // tokens of a prompt; none: no prefill rows
  std::vector<int64_t> generates = {64};      // tokens to generate; none: no decode rows
  std::vector<int64_t> batches = {1};         // sequences of decode rows
  std::vector<int64_t> prompt_batches = {1};  // prompts side by side
  std::vector<int64_t> depths = {0};          // tokens in the cache before the measured ones
  std::vector<BenchJob> jobs;                 // measured whole, at no depth
  std::vector<int> threads = {0};             // 0: one per processor
  bool pin_threads = false;
  Device device;  // where the model is
  int repetitions = 5;
  int64_t batch_tokens = 512;  // most tokens in one forward pass
  ActivationPrecision precision = ActivationPrecision::kInt8;
  bool deterministic = false;  // RunnerOptions
  DType kv_dtype = DType::kBF16;
  bool dynamic_kv_scales = false;  // CacheOptions
  uint64_t seed = 0;               // of the token ids
  int64_t workspace_bytes = 0;     // most for a step's activations; 0: no limit worth the name
  // If set, profilers keep their events, and this sees each row's after its profiled run.
  std::function<void(const Profiler&)> on_profile;
};

// The longest sequence and the most sequences side by side of all rows.
int64_t longest_sequence(const ModelBenchmarkOptions& options);
int64_t most_sequences(const ModelBenchmarkOptions& options);
// Of the cache that each number of threads gets.
CacheOptions benchmark_cache(const ModelBenchmarkOptions& options, int64_t longest,
                             int64_t sequences);

// What is being done: run `done` of `total` (ceilings and warm-up included) and, once every row has
// run, the seconds that the rest will take (before: negative).
struct BenchProgress {
  int64_t done = 0;
  int64_t total = 0;
  double seconds_left = -1;
  std::string what;
};
using BenchProgressFunction = std::function<void(const BenchProgress&)>;

// Prefill and decode with synthetic tokens: each row warms up, runs once under the profiler, then
// `repetitions` times in turn with all other rows, so that a slow spell of the machine meets all of
// them. Decoding takes the given tokens, not those of the logits, which are computed all the same.
// Throws UsageError if a row exceeds the model's context.
std::vector<BenchRow> run_model_benchmark(const Model& model, const ModelBenchmarkOptions& options,
                                          const BenchProgressFunction& progress);

// Ceilings for each number of threads (0: one per processor): those known, or measured now.
std::vector<Ceilings> find_ceilings(const std::vector<int>& threads, bool measure_again,
                                    const CeilingCache& cache);

}  // namespace braid

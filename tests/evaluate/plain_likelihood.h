#pragma once

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "evaluate/likelihood_scorer.h"
#include "runner/runner.h"
#include "support/fresh_seed.h"

namespace braid::testing {

inline std::filesystem::path model_path(const std::string& name) {
  return std::filesystem::path(BRAID_TEST_DATA) / "models" / name;
}

inline std::vector<int32_t> random_ids(FreshRandom& random, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(random.integer(0, vocab_size - 1)));
  }
  return ids;
}

// All rows of one sequence, by a runner of its own, in one step: [tokens][vocab].
inline std::vector<std::vector<float>> plain_logits(const Model& model,
                                                    std::span<const int32_t> ids) {
  const auto count = static_cast<int64_t>(ids.size());
  ThreadPool threads({.num_threads = 1});
  Stream stream(threads);
  CachePool pool(model.cache_layout(),
                 {.kv_dtype = DType::kF32, .max_tokens = count, .max_step_tokens = count});
  Runner runner(model, pool, stream, {.precision = ActivationPrecision::kF32});
  SequenceState sequence(pool);
  StepPlan plan;
  plan.sequences.push_back({&sequence, ids, WantedLogits::kAll});
  const StepResult result = runner.run(plan);
  std::vector<std::vector<float>> rows;
  for (int64_t t = 0; t < count; ++t) {
    const float* row = result.logits.row<float>(t);
    rows.emplace_back(row, row + result.logits.dim(1));
  }
  return rows;
}

inline double plain_nll(const std::vector<float>& row, int32_t target) {
  long double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<long double>(x));
  return static_cast<double>(std::log(sum) - row[static_cast<size_t>(target)]);
}

inline double plain_kl(const std::vector<float>& reference, const std::vector<float>& row) {
  long double kl = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const long double p = -plain_nll(reference, static_cast<int32_t>(i));
    const long double q = -plain_nll(row, static_cast<int32_t>(i));
    kl += std::exp(p) * (p - q);
  }
  return static_cast<double>(kl);
}

inline ScorerModel exact(const LoadedModel& loaded) {
  return {.loaded = &loaded, .precision = ActivationPrecision::kF32, .kv_dtype = DType::kF32};
}

// Logits are float32 sums whose order does not depend on the batch (or, of recurrent layers, only
// beyond an alignment that the scorer keeps), so what is left is the error of a few hundred float64
// additions.
constexpr double kTiny = 1e-11;

}  // namespace braid::testing

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_pool.h"
#include "models/model.h"
#include "quant/panels.h"
#include "runner/runner.h"

namespace braid::testing {

// Of all ids, [ids, vocabulary].
inline std::vector<float> logits_of(const Model& model, const std::vector<int32_t>& ids,
                                    const RunnerOptions& options = {}) {
  ThreadPool threads({.num_threads = 2});
  Stream stream(threads);
  CachePool pool(model.cache_layout(), {.max_tokens = static_cast<int64_t>(ids.size()),
                                        .max_step_tokens = static_cast<int64_t>(ids.size())});
  Runner runner(model, pool, stream, options);
  SequenceState sequence(pool);
  StepPlan plan;
  plan.sequences.push_back({&sequence, ids, WantedLogits::kAll});
  const std::span<float> logits = runner.run(plan).logits.span<float>();
  return {logits.begin(), logits.end()};
}

// All elements, by rows.
inline std::vector<float> values_of(const Weight& weight) {
  const int64_t cols = weight.cols(), rows = weight.shape.num_elements() / cols;
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (int64_t r = 0; r < rows; ++r) expand_row(weight, r, values.data() + r * cols);
  return values;
}

}  // namespace braid::testing

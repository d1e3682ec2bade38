#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "engine/loaded_model.h"
#include "engine/memory_plan.h"
#include "evaluate/row_score.h"
#include "ops/linear/linear.h"
#include "tensor/dtype.h"

namespace braid {

// How one model computes.
struct ScorerModel {
  const LoadedModel* loaded = nullptr;
  ActivationPrecision precision = ActivationPrecision::kF32;
  bool deterministic = false;  // RunnerOptions
  DType kv_dtype = DType::kBF16;
  bool dynamic_kv_scales = false;  // CacheOptions
  int64_t workspace_bytes = 0;     // most for a step's activations; 0: no limit worth the name
};

struct ScorerOptions {
  ScorerModel model;
  ScorerModel reference;  // loaded null: none
  ThreadPoolOptions threads;
  int64_t max_sequence_tokens = 0;  // longest sequence
  int64_t max_sequences = 0;        // side by side; 0: as many as fill a step
  int64_t batch_tokens = 0;         // in one forward pass; 0: by the bytes of their logits
};

// What the scorer of these options makes each model's cache of, and the largest of its steps.
CacheOptions scorer_cache(const ScorerOptions& options, const ScorerModel& scored);
StepSize scorer_step(const ScorerOptions& options, const ScorerModel& scored);

// Tokens of which some are to be judged by those before them.
struct ScoredSequence {
  std::span<const int32_t> tokens;
  int64_t first_scored = 1;  // tokens[first_scored ..] are; at least 1
};

// Runs sequences through a model, and through a reference if there is one, each from an empty
// cache, and scores tokens. Rows of logits are used as they come: at most batch_tokens (plus
// alignment) of them exist at a time. Used by one thread.
class LikelihoodScorer {
 public:
  // The models must outlive the scorer. Throws Error if the vocabularies' sizes differ, or a limit
  // exceeds a model's context.
  explicit LikelihoodScorer(const ScorerOptions& options);
  ~LikelihoodScorer();

  // Called once for each sequence, when it is done, with its index and a score for each token from
  // first_scored on. Sequences end in no particular order.
  using Done = std::function<void(size_t, std::span<const TokenScore>)>;
  // Called after each step with the number of tokens computed by it (once, not for each model).
  using Progress = std::function<void(int64_t)>;

  // Throws Error naming the sequence by `name_of(index)` if logits are not finite.
  void run(std::span<const ScoredSequence> sequences, const Done& done,
           const Progress& progress = nullptr,
           const std::function<std::string(size_t)>& name_of = nullptr);

  bool has_reference() const { return options_.reference.loaded != nullptr; }
  const Model& model() const { return options_.model.loaded->model(); }
  const ScorerOptions& options() const { return options_; }

 private:
  struct Lane;
  struct Active;

  ScorerOptions options_;
  int64_t alignment_ = 1;
  ThreadPool threads_;
  std::unique_ptr<Lane> lane_, reference_lane_;
};

}  // namespace braid

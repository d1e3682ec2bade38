#include "evaluate/likelihood_scorer.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "cache/cache_pool.h"
#include "runner/runner.h"
#include "scheduler/chunk_planner.h"
#include "tensor/stream.h"

namespace braid {
namespace {

constexpr int64_t kLogitsBytesPerStep = int64_t{64} << 20;
constexpr int64_t kDeviceLogitsBytesPerStep = int64_t{512} << 20;
constexpr int64_t kFewestStepTokens = 64, kMostStepTokens = 512;
constexpr int64_t kShortSequence = 64;

int64_t step_tokens(const ScorerOptions& options) {
  if (options.batch_tokens > 0) return options.batch_tokens;
  const LoadedModel& loaded = *options.model.loaded;
  const int64_t row_bytes = loaded.model().vocab_size() * static_cast<int64_t>(sizeof(float));
  const int64_t bytes = loaded.device().is_cpu() ? kLogitsBytesPerStep : kDeviceLogitsBytesPerStep;
  return std::clamp(bytes / row_bytes, kFewestStepTokens, kMostStepTokens);
}

ScorerOptions resolved(ScorerOptions options) {
  options.batch_tokens = step_tokens(options);
  if (options.max_sequences == 0) {
    options.max_sequences = std::max<int64_t>(1, options.batch_tokens / kShortSequence);
  }
  return options;
}

int64_t alignment(const ScorerOptions& options) {
  int64_t alignment = 1;
  for (const ScorerModel* scored : {&options.model, &options.reference}) {
    if (scored->loaded == nullptr) continue;
    alignment = std::max(alignment, scored->loaded->model().prefill_alignment());
  }
  return alignment;
}

// Of all sequences that are taken up at a time.
int64_t max_held_tokens(const ScorerOptions& options) {
  return options.batch_tokens + options.max_sequence_tokens;
}

void check_model(const ScorerModel& scored, int64_t tokens) {
  const Model& model = scored.loaded->model();
  if (tokens > model.max_positions()) {
    throw Error("{}: {} tokens, but the model's context is {}", scored.loaded->origin(), tokens,
                model.max_positions());
  }
}

}  // namespace

CacheOptions scorer_cache(const ScorerOptions& options, const ScorerModel& scored) {
  const ScorerOptions settled = resolved(options);
  return {.kv_dtype = scored.kv_dtype,
          .dynamic_kv_scales = scored.dynamic_kv_scales,
          .max_tokens = max_held_tokens(settled),
          .max_sequences = settled.max_sequences,
          .max_sequence_tokens = settled.max_sequence_tokens,
          .max_step_tokens = max_planned_tokens(
              {.budget = settled.batch_tokens, .alignment = alignment(settled)})};
}

StepSize scorer_step(const ScorerOptions& options, const ScorerModel& scored) {
  const CacheOptions cache = scorer_cache(options, scored);
  return {.tokens = cache.max_step_tokens,
          .logits_rows = cache.max_step_tokens,
          .sequences = cache.max_sequences,
          .precision = scored.precision};
}

// One model with what it computes in.
struct LikelihoodScorer::Lane {
  Lane(const ScorerModel& scored, ThreadPool& threads, const ScorerOptions& options)
      : stream(threads, scored.loaded->device()),
        pool(scored.loaded->model().cache_layout(), scorer_cache(options, scored),
             scored.loaded->device()),
        runner(scored.loaded->model(), pool, stream, runner_options(scored)) {}

  static RunnerOptions runner_options(const ScorerModel& scored) {
    RunnerOptions runner{.precision = scored.precision, .deterministic = scored.deterministic};
    if (scored.workspace_bytes > 0) {
      runner.workspace_bytes = static_cast<size_t>(scored.workspace_bytes);
    }
    return runner;
  }

  Stream stream;
  CachePool pool;
  Runner runner;
};

struct LikelihoodScorer::Active {
  size_t index = 0;  // of the sequence
  std::unique_ptr<SequenceState> state, reference_state;
  std::vector<TokenScore> scores;  // of the tokens from first_scored on
};

LikelihoodScorer::LikelihoodScorer(const ScorerOptions& options)
    : options_(options), threads_(options.threads) {
  BRAID_CHECK(options_.model.loaded != nullptr && options_.max_sequence_tokens > 0,
              "no model, or no length");
  check_model(options_.model, options_.max_sequence_tokens);
  if (has_reference()) {
    check_model(options_.reference, options_.max_sequence_tokens);
    const Model& reference = options_.reference.loaded->model();
    if (reference.vocab_size() != model().vocab_size()) {
      throw Error(
          "{}: a vocabulary of {}, but the reference {} has one of {}; they cannot be "
          "compared token by token",
          options_.model.loaded->origin(), model().vocab_size(),
          options_.reference.loaded->origin(), reference.vocab_size());
    }
  }
  alignment_ = alignment(options_);
  options_ = resolved(options_);
  lane_ = std::make_unique<Lane>(options_.model, threads_, options_);
  if (has_reference()) {
    reference_lane_ = std::make_unique<Lane>(options_.reference, threads_, options_);
  }
}

LikelihoodScorer::~LikelihoodScorer() = default;

void LikelihoodScorer::run(std::span<const ScoredSequence> sequences, const Done& done,
                           const Progress& progress,
                           const std::function<std::string(size_t)>& name_of) {
  std::vector<std::unique_ptr<Active>> active;
  std::vector<PendingTokens> pending;
  StepPlan plan, reference_plan;
  std::vector<TokenScore> scores;
  size_t next = 0;
  // What goes through the model: the last token predicts nothing.
  const auto inputs_of = [&](const Active& each) {
    const std::span<const int32_t> tokens = sequences[each.index].tokens;
    return tokens.first(tokens.size() - 1);
  };

  // Sequences are taken up while the step has tokens to spare.
  const auto take_up = [&] {
    int64_t left = options_.batch_tokens, held = 0;
    for (const auto& each : active) {
      const auto size = static_cast<int64_t>(inputs_of(*each).size());
      left -= size - each->state->length();
      held += size;
    }
    while (next < sequences.size() && left > 0 &&
           static_cast<int64_t>(active.size()) < options_.max_sequences) {
      const ScoredSequence& sequence = sequences[next];
      const auto size = static_cast<int64_t>(sequence.tokens.size());
      BRAID_CHECK(sequence.first_scored >= 1 && sequence.first_scored < size &&
                      size <= options_.max_sequence_tokens,
                  "sequence of {} tokens, scored from {} on, of at most {}", size,
                  sequence.first_scored, options_.max_sequence_tokens);
      if (held + size > max_held_tokens(options_)) return;
      auto item = std::make_unique<Active>();
      item->index = next++;
      item->state = std::make_unique<SequenceState>(lane_->pool);
      if (has_reference()) {
        item->reference_state = std::make_unique<SequenceState>(reference_lane_->pool);
      }
      item->scores.reserve(static_cast<size_t>(size - sequence.first_scored));
      active.push_back(std::move(item));
      left -= size;
      held += size;
    }
  };

  const auto owner = [&](const SequenceState* state) {
    const auto found = std::find_if(active.begin(), active.end(),
                                    [&](const auto& each) { return each->state.get() == state; });
    BRAID_CHECK(found != active.end(), "a state of no sequence");
    return found->get();
  };

  const auto make_plans = [&] {
    pending.clear();
    for (const auto& each : active) {
      const int64_t begin = each->state->length();
      std::span<const int32_t> rest = inputs_of(*each).subspan(static_cast<size_t>(begin));
      // Logits of what comes before the first wanted row are not computed, as far as chunks of the
      // recurrent layers allow a cut.
      const int64_t unscored =
          (sequences[each->index].first_scored - 1) / alignment_ * alignment_ - begin;
      const bool is_unscored = unscored > 0;
      if (is_unscored) rest = rest.first(static_cast<size_t>(unscored));
      pending.push_back({.sequence = each->state.get(),
                         .tokens = rest,
                         .logits = is_unscored ? WantedLogits::kNone : WantedLogits::kAll});
    }
    plan_chunks(pending, {.budget = options_.batch_tokens, .alignment = alignment_}, plan);
    if (!has_reference()) return;
    reference_plan = plan;
    for (SequenceStep& step : reference_plan.sequences) {
      step.sequence = owner(step.sequence)->reference_state.get();
    }
  };

  while (true) {
    take_up();
    if (active.empty()) return;
    make_plans();
    // Lengths before the step: where each of its sequences begins.
    std::vector<Active*> owners;
    std::vector<int64_t> begins;
    for (const SequenceStep& step : plan.sequences) {
      owners.push_back(owner(step.sequence));
      begins.push_back(step.sequence->length());
    }
    const StepResult result = lane_->runner.run(plan);
    BRAID_CHECK(result.status == StepStatus::kDone, "no room in a cache made for the sequences");
    StepResult reference;
    if (has_reference()) {
      reference = reference_lane_->runner.run(reference_plan);
      BRAID_CHECK(
          reference.status == StepStatus::kDone && reference.rows.size() == result.rows.size(),
          "the reference has computed another step");
    }

    // The row of token t predicts token t + 1.
    const auto vocab = static_cast<size_t>(model().vocab_size());
    const size_t num_rows = result.rows.size();
    scores.assign(num_rows, {});
    const auto target_of = [&](size_t row) {
      const LogitsRow& at = result.rows[row];
      return begins[at.sequence] + at.token + 1;
    };
    const auto is_scored = [&](size_t row) {
      return target_of(row) >= sequences[owners[result.rows[row].sequence]->index].first_scored;
    };
    for (size_t row = 0; row < num_rows; ++row) {
      const bool model_finite = result.rows[row].finite;
      if (model_finite && (!has_reference() || reference.rows[row].finite)) continue;
      const size_t index = owners[result.rows[row].sequence]->index;
      throw Error("{}: the logits after token {} of {} hold a NaN or an infinity",
                  (model_finite ? options_.reference : options_.model).loaded->origin(),
                  target_of(row), name_of ? name_of(index) : fmt::format("sequence {}", index));
    }
    threads_.parallel_for(static_cast<int64_t>(num_rows), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        if (!is_scored(row)) continue;
        const Active& item = *owners[result.rows[row].sequence];
        const int32_t target = sequences[item.index].tokens[target_of(row)];
        const std::span<const float> logits(result.logits.row<float>(row), vocab);
        scores[row] = has_reference()
                          ? score_row(logits, {reference.logits.row<float>(row), vocab}, target)
                          : score_row(logits, target);
      }
    });
    for (size_t row = 0; row < num_rows; ++row) {
      if (is_scored(row)) owners[result.rows[row].sequence]->scores.push_back(scores[row]);
    }
    if (progress) progress(plan.num_tokens());

    for (auto& each : active) {
      if (each->state->length() < static_cast<int64_t>(inputs_of(*each).size())) continue;
      done(each->index, each->scores);
      each.reset();
    }
    std::erase(active, nullptr);
  }
}

}  // namespace braid

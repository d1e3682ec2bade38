#include "speculative/model_drafter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace braid {
namespace {

const Model& check(const Model& model, const Model& target) {
  if (model.vocab_size() != target.vocab_size()) {
    throw Error(
        "--speculate model: the draft model has a vocabulary of {} tokens, the model one of {}; "
        "they must be the same",
        model.vocab_size(), target.vocab_size());
  }
  return model;
}

}  // namespace

CacheOptions ModelDrafter::cache_options(const Model& model, const DrafterSizes& sizes) {
  const int64_t longest = std::min(sizes.max_context + sizes.max_drafts, model.max_positions());
  return {.kv_dtype = sizes.kv_dtype,
          .dynamic_kv_scales = sizes.dynamic_kv_scales,
          .max_tokens = sizes.max_sequences * longest,
          .max_sequences = sizes.max_sequences,
          .max_sequence_tokens = longest,
          // Windows must hold the drafts of a round beside what the text sees.
          .max_step_tokens =
              std::clamp(sizes.max_step_tokens, std::min(sizes.max_drafts + 1, longest), longest)};
}

ModelDrafter::ModelDrafter(std::shared_ptr<const Model> model, const DrafterSetup& setup)
    : model_(std::move(model)),
      max_drafts_(setup.max_drafts),
      pool_(check(*model_, setup.target).cache_layout(), cache_options(*model_, setup),
            setup.stream.device()),
      runner_(*model_, pool_, setup.stream, {.precision = setup.precision}),
      sampler_(setup.stream) {}

bool ModelDrafter::fits(const DraftRequest& request) const {
  const int64_t needed = static_cast<int64_t>(request.tokens.size()) + request.max_drafts;
  if (needed <= pool_.plan().options.max_sequence_tokens) return true;
  warn_once(fmt::format(
      "the draft model reads at most {} tokens; longer texts are decoded without drafts",
      model_->max_positions()));
  return false;
}

int64_t ModelDrafter::text_end(const DraftRequest& request) const {
  return request.max_drafts > 0 ? static_cast<int64_t>(request.tokens.size())
                                : request.target->length();
}

void ModelDrafter::draft(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    request.drafts.clear();
    Sequence& sequence = sequences_.try_emplace(request.sequence, pool_).first->second;
    const int64_t target_length = request.target->length();
    const int64_t added = target_length - std::exchange(sequence.target_length, target_length);
    const bool is_prompt = added > max_drafts_ + 1;
    sequence.reads = (request.max_drafts > 0 || is_prompt) && fits(request);
    if (sequence.reads) keep_right_drafts(request, sequence);
  }
  read_texts(requests);
  continue_drafts(requests);
}

// Drafts that the text has turned out to continue with need not be computed again.
void ModelDrafter::keep_right_drafts(const DraftRequest& request, Sequence& sequence) {
  SequenceState& state = sequence.state;
  const int64_t computed = static_cast<int64_t>(sequence.drafts.size());
  const int64_t base = state.length() - computed;
  // The newest token is computed in any case: its logits are needed.
  const int64_t known = static_cast<int64_t>(request.tokens.size()) - 1;
  int64_t right = 0;
  while (right < computed && base + right < known &&
         sequence.drafts[static_cast<size_t>(right)] ==
             request.tokens[static_cast<size_t>(base + right)]) {
    ++right;
  }
  if (right < computed) {
    const bool recurrent = pool_.num_recurrent_groups() > 0;
    const bool done = recurrent && base > 0 ? state.truncate(sequence.snapshot)
                                            : state.truncate(recurrent ? 0 : base + right);
    BRAID_CHECK(done, "drafts that cannot be forgotten");
  }
  sequence.drafts.clear();
}

// Chunks of the texts that are not read yet; the last one of each gives the first draft.
void ModelDrafter::read_texts(std::span<DraftRequest> requests) {
  for (size_t next = 0; next < requests.size();) {
    int64_t budget = runner_.max_step_tokens();
    plan_.sequences.clear();
    request_of_.clear();
    while (next < requests.size() && budget > 0) {
      const DraftRequest& request = requests[next];
      Sequence& sequence = sequences_.at(request.sequence);
      const int64_t begin = sequence.state.length();
      const int64_t pending = text_end(request) - begin;
      if (!sequence.reads || pending <= 0) {
        ++next;
        continue;
      }
      const int64_t count = std::min(pending, budget);
      const bool last = count == pending;
      const bool wanted = last && request.max_drafts > 0;
      plan_.sequences.push_back(
          {.sequence = &sequence.state,
           .tokens = request.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
           .logits = wanted ? WantedLogits::kLast : WantedLogits::kNone});
      request_of_.push_back(next);
      budget -= count;
      if (!last) break;
      ++next;
    }
    if (!plan_.sequences.empty()) run_and_pick(requests);
  }
}

// One row of each sequence that has a draft and wants more.
void ModelDrafter::continue_drafts(std::span<DraftRequest> requests) {
  int64_t longest = 0;
  for (const DraftRequest& request : requests) longest = std::max(longest, request.max_drafts);
  for (size_t drafts = 1; static_cast<int64_t>(drafts) < longest; ++drafts) {
    for (size_t next = 0; next < requests.size();) {
      plan_.sequences.clear();
      request_of_.clear();
      for (; next < requests.size() &&
             static_cast<int64_t>(request_of_.size()) < runner_.max_step_tokens();
           ++next) {
        const DraftRequest& request = requests[next];
        if (request.drafts.size() != drafts) continue;
        if (static_cast<int64_t>(drafts) >= request.max_drafts) continue;
        Sequence& sequence = sequences_.at(request.sequence);
        if (sequence.drafts.empty() && pool_.num_recurrent_groups() > 0) {
          sequence.snapshot = sequence.state.snapshot();
        }
        sequence.drafts.push_back(request.drafts.back());
        plan_.sequences.push_back(
            {.sequence = &sequence.state, .tokens = std::span(request.drafts).last(1)});
        request_of_.push_back(next);
      }
      if (!plan_.sequences.empty()) run_and_pick(requests);
    }
  }
}

void ModelDrafter::run_and_pick(std::span<DraftRequest> requests) {
  picks_for_.clear();
  for (size_t i = 0; i < request_of_.size(); ++i) {
    if (plan_.sequences[i].logits == WantedLogits::kLast) picks_for_.push_back(request_of_[i]);
  }
  const StepResult result =
      runner_.run(plan_, {.wants_logits = false, .draws = sampler_.rules(requests, picks_for_)});
  BRAID_CHECK(result.status == StepStatus::kDone, "the cache is sized for every sequence");
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const int32_t draft = result.drawn[i].token;
    if (result.rows[i].finite && draft >= 0) requests[picks_for_[i]].drafts.push_back(draft);
  }
}

void ModelDrafter::rewind(int64_t id, int64_t length) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  const int64_t computed = static_cast<int64_t>(sequence.drafts.size());
  const int64_t base = sequence.state.length() - computed;
  sequence.target_length = std::min(sequence.target_length, length);
  // Drafts beyond the known tokens are judged in the next round, as always.
  if (base <= length) return;
  if (!sequence.state.truncate(length)) sequence.state.truncate(0);
  sequence.drafts.clear();
}

}  // namespace braid

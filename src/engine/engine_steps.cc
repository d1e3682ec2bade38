#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/engine_sequence.h"

// How the engine launches steps and takes what they bring.
namespace braid {

void Engine::run_step(std::vector<TokenEvent>& events) {
  const auto begin = std::chrono::steady_clock::now();
  drop_dead_flights();
  if (flights_.empty()) launch_planned();
  if (can_run_ahead(flights_.front())) launch_ahead();
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  StepResult result;
  std::string error = flight.error;
  if (error.empty()) {
    try {
      result = runner_.finish();
    } catch (const Error& failure) {
      error = failure.what();
    }
  }
  if (!error.empty()) {
    for (Sequence* sequence : flight.owners) {
      if (sequence == nullptr || sequence->finished) continue;
      events.push_back({.request = sequence->id, .error = error});
      finish(*sequence, events.back(), FinishReason::kError);
    }
    return;
  }

  int64_t num_drawn = 0;
  size_t row = 0;
  for (size_t i = 0; i < flight.owners.size(); ++i) {
    const SequenceStep& step = flight.plan.sequences[i];
    if (flight.owners[i] == nullptr) {
      row += num_logits_rows(step);
      continue;
    }
    const int64_t drawn = accept_rows(*flight.owners[i], step, result, row, events);
    if (!step.commit) step.sequence->commit(drawn);
    num_drawn += drawn;
  }
  const bool decoding = flight.prompt_tokens == 0;
  const auto end = std::chrono::steady_clock::now();
  double seconds =
      std::chrono::duration<double>(end - (flight.ahead ? last_step_end_ : begin)).count();
  last_step_end_ = end;
  if (speculation_) {
    speculation_->observe_step(static_cast<int64_t>(flight.owners.size()), num_drawn, seconds,
                               decoding);
    draft_next(flight, result);
    seconds += speculation_->round_seconds();
  }
  stats_.prompt_tokens += flight.prompt_tokens;
  if (flight.ahead) ++stats_.steps_ahead;
  if (decoding) {
    stats_.decode_seconds += seconds;
    stats_.decode_tokens += num_drawn;
  } else {
    stats_.prefill_seconds += seconds;
  }
}

void Engine::launch_planned() {
  plan_step();
  Flight flight{.plan = plan_};
  for (const SequenceStep& step : plan_.sequences) {
    Sequence* owner = owners_.at(step.sequence);
    flight.owners.push_back(owner);
    const int64_t left =
        static_cast<int64_t>(owner->request.prompt.size()) - step.sequence->length();
    flight.prompt_tokens += std::clamp<int64_t>(left, 0, static_cast<int64_t>(step.tokens.size()));
  }
  const std::span<const DrawRule> rules = draw_rules(flight, 0);
  launch(std::move(flight), rules, {});
}

// Whether steps may be launched ahead at all.
bool Engine::runs_ahead() const {
  switch (options_.run_ahead) {
    case EngineOptions::RunAhead::kNever:
      return false;
    case EngineOptions::RunAhead::kOnDevices:
      return !stream_.is_cpu();
    case EngineOptions::RunAhead::kAlways:
      return true;
  }
  return false;
}

// Whether the step after `flight` can be told before its tokens are known.
bool Engine::can_run_ahead(const Flight& flight) const {
  if (!runs_ahead() || speculation_ || stream_.profiler() != nullptr || flights_.size() > 1 ||
      !flight.error.empty()) {
    return false;
  }
  // A recurrent state that is kept for the next request must not go past what that may go on from.
  if (options_.reuse_last && pool_.num_recurrent_groups() > 0) return false;
  size_t num_alive = 0;
  bool any_goes_on = false;
  for (size_t i = 0; i < flight.owners.size(); ++i) {
    const Sequence* sequence = flight.owners[i];
    if (sequence == nullptr) continue;
    ++num_alive;
    if (flight.plan.sequences[i].logits != WantedLogits::kLast ||
        sequence->state->length() != static_cast<int64_t>(sequence->tokens.size()) ||
        sequence->request.sampling.has_penalties()) {
      return false;
    }
    any_goes_on = any_goes_on || !ends_for_sure(*sequence);
  }
  return any_goes_on && num_alive == running_.size();
}

// With its next token, whatever that is.
bool Engine::ends_for_sure(const Sequence& sequence) const {
  const int64_t limit = sequence.request.max_new_tokens;
  return static_cast<int64_t>(sequence.tokens.size()) + 1 >= max_context_ ||
         (limit > 0 && sequence.num_generated() + 1 >= limit);
}

void Engine::launch_ahead() {
  static constexpr int32_t kFed[] = {0};
  const Flight& front = flights_.front();
  Flight flight{.ahead = true};
  fed_from_.clear();
  for (size_t i = 0; i < front.owners.size(); ++i) {
    Sequence* sequence = front.owners[i];
    if (sequence == nullptr || ends_for_sure(*sequence)) continue;
    flight.plan.sequences.push_back({.sequence = &*sequence->state, .tokens = kFed});
    flight.owners.push_back(sequence);
    fed_from_.push_back(static_cast<int32_t>(i));  // one row each
  }
  const std::span<const DrawRule> rules = draw_rules(flight, 1);
  launch(std::move(flight), rules, fed_from_);
}

void Engine::launch(Flight flight, std::span<const DrawRule> rules,
                    std::span<const int32_t> fed_from) {
  try {
    const StepResult launched =
        runner_.launch(flight.plan, {.wants_logits = false,
                                     .draws = rules,
                                     .wants_hidden = speculation_ && speculation_->wants_hidden(),
                                     .fed_from = fed_from});
    BRAID_CHECK(launched.status == StepStatus::kDone,
                "the cache is sized for every admitted sequence");
  } catch (const Error& error) {
    flight.error = error.what();
  }
  flights_.push_back(std::move(flight));
}

// Steps of which nobody wants to know any more.
void Engine::drop_dead_flights() {
  while (!flights_.empty()) {
    const auto& owners = flights_.front().owners;
    if (std::any_of(owners.begin(), owners.end(), [](const Sequence* s) { return s != nullptr; })) {
      return;
    }
    const bool launched = flights_.front().error.empty();
    flights_.pop_front();
    if (!launched) continue;
    try {
      runner_.finish();
    } catch (const Error& error) {
      spdlog::debug("a step that nobody waits for failed: {}", error.what());
    }
  }
}

// How the tokens of the step's rows are drawn; the rows of drafts as if these held. Mostly nothing
// on the CPU: there rows are drawn one by one, up to the first draft that does not hold.
// num_unknown: tokens of each sequence that will be known in front of those.
std::span<const DrawRule> Engine::draw_rules(const Flight& flight, int64_t num_unknown) {
  rules_.clear();
  if (stream_.is_cpu() && !runs_ahead()) return rules_;
  bool all_largest = true;
  for (size_t s = 0; s < flight.owners.size(); ++s) {
    const SequenceStep& step = flight.plan.sequences[s];
    const Sequence& sequence = *flight.owners[s];
    const SamplingParams& sampling = sequence.request.sampling;
    const size_t num_rows = num_logits_rows(step);
    if (num_rows > 0) all_largest = all_largest && sampling.takes_largest();
    for (size_t i = 0; i < num_rows; ++i) {
      if (rule_edits_.size() == rules_.size()) rule_edits_.emplace_back();
      SamplingKey key = sequence.next_key();
      key.position += static_cast<uint64_t>(num_unknown) + i;
      DrawRule rule = make_draw_rule(
          sampling, sampling.has_penalties() ? &sequence.history : nullptr,
          step.logits == WantedLogits::kAll ? step.tokens.subspan(1, i) : step.tokens.first(0), key,
          rule_edits_[rules_.size()]);
      rule.row = static_cast<int64_t>(rules_.size());
      rules_.push_back(rule);
    }
  }
  if (all_largest) rules_.clear();
  return rules_;
}

}  // namespace braid

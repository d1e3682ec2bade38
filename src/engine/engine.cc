#include "engine/engine.h"

#include <algorithm>
#include <random>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/engine_sequence.h"

namespace braid {
namespace {

ChunkOptions chunk_options(const Model& model, const EngineOptions& options, int64_t max_context) {
  return {.budget = std::min(options.batch_tokens, max_context * options.max_sequences),
          .alignment = model.prefill_alignment()};
}

int64_t max_kept_sequences(const EngineOptions& options) {
  // A retained sequence keeps its pages while another starts.
  return options.max_sequences + (options.reuse_last ? 1 : 0);
}

RunnerOptions runner_options(const EngineOptions& options) {
  RunnerOptions runner{.precision = options.precision, .deterministic = options.deterministic};
  if (options.workspace_bytes > 0) {
    runner.workspace_bytes = static_cast<size_t>(options.workspace_bytes);
  }
  return runner;
}

const EngineOptions& check(const EngineOptions& options) {
  const int64_t drafts = options.speculation.max_drafts;
  if (options.speculation.drafter && (drafts < 1 || drafts > SpeculationOptions::kMaxDrafts)) {
    throw Error("{} draft tokens: expected 1 to {}", drafts, SpeculationOptions::kMaxDrafts);
  }
  return options;
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

int64_t resolve_context(const Model& model, int64_t asked) {
  const int64_t limit = model.max_positions();
  if (asked < 0)
    throw Error("context of {} tokens: expected 1 or more, or 0 for the default", asked);
  if (asked == 0) return std::min(limit, EngineOptions::kDefaultContext);
  if (asked > limit) {
    throw Error("context of {} tokens: the model's limit is {} (max_position_embeddings)", asked,
                limit);
  }
  return asked;
}

CacheOptions cache_options(const Model& model, const EngineOptions& options, int64_t max_context) {
  const int64_t sequences = max_kept_sequences(options);
  const int64_t step = max_planned_tokens(chunk_options(model, options, max_context));
  const int64_t drafts = options.speculation.drafter ? options.speculation.max_drafts : 0;
  return {.kv_dtype = options.kv_dtype,
          .dynamic_kv_scales = options.dynamic_kv_scales,
          .max_tokens = sequences * max_context,
          .max_sequences = sequences,
          .max_sequence_tokens = max_context,
          .max_step_tokens = step,
          .max_logged_tokens = drafts > 0 ? std::min(drafts + 1, step) : 0};
}

DrafterSizes drafter_sizes(const EngineOptions& options, const CacheOptions& cache) {
  return {.precision = options.precision,
          .kv_dtype = options.kv_dtype,
          .dynamic_kv_scales = options.dynamic_kv_scales,
          .max_context = cache.max_sequence_tokens,
          .max_sequences = cache.max_sequences,
          .max_step_tokens = cache.max_step_tokens,
          .max_drafts = options.speculation.max_drafts};
}

Engine::Engine(const LoadedModel& loaded, const EngineOptions& options)
    : loaded_(loaded),
      options_(check(options)),
      max_context_(resolve_context(loaded.model(), options.max_context)),
      threads_(options.threads),
      stream_(threads_, loaded.device()),
      pool_(loaded.model().cache_layout(), cache_options(loaded.model(), options, max_context_),
            loaded.device()),
      runner_(loaded.model(), pool_, stream_, runner_options(options)) {
  stream_.set_profiler(options.profiler);
  if (!options.speculation.drafter) return;
  speculation_.emplace(
      options.speculation,
      DrafterSetup(drafter_sizes(options, pool_.plan().options), loaded.model(), stream_));
}

Engine::~Engine() {
  try {
    if (!flights_.empty()) stream_.synchronize();  // they use memory that goes now
  } catch (const Error& error) {
    spdlog::debug("the last step failed: {}", error.what());
  }
}

RequestId Engine::submit(GenerationRequest request) {
  const int64_t vocab_size = loaded_.model().vocab_size();
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (request.prompt.empty()) throw Error("the prompt is empty: there is no token to start from");
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= vocab_size) {
      throw Error("the prompt holds token {}, outside the model's vocabulary of {}", id,
                  vocab_size);
    }
  }
  if (prompt_tokens >= max_context_) {
    throw Error(
        "the prompt has {} tokens, but the context holds {} and needs room for a reply; "
        "shorten it or raise --ctx-size",
        prompt_tokens, max_context_);
  }
  if (request.max_new_tokens == 0 || request.max_new_tokens < -1) {
    throw Error("max tokens is {}: expected 1 or more, or -1 for no limit", request.max_new_tokens);
  }
  validate(request.sampling, vocab_size);
  const Tokenizer* tokenizer = loaded_.has_tokenizer() ? &loaded_.tokenizer() : nullptr;
  const uint64_t seed = request.sampling.seed ? *request.sampling.seed : random_seed();
  const RequestId id = next_id_++;
  waiting_.push_back(std::make_unique<Sequence>(id, std::move(request), seed, tokenizer));
  return id;
}

void Engine::cancel(RequestId id) {
  for (auto& sequence : waiting_) {
    if (sequence->id == id) sequence->cancelled = true;
  }
  for (auto& sequence : running_) {
    if (sequence->id == id) sequence->cancelled = true;
  }
}

std::vector<TokenEvent> Engine::step() {
  std::vector<TokenEvent> events;
  end_cancelled(events);
  admit();
  if (!running_.empty()) run_step(events);
  retire_finished();
  std::stable_sort(events.begin(), events.end(),
                   [](const TokenEvent& a, const TokenEvent& b) { return a.request < b.request; });
  return events;
}

// Before admission: a request that is cancelled while it waits neither runs nor takes the retained
// cache.
void Engine::end_cancelled(std::vector<TokenEvent>& events) {
  const auto end = [&](Sequence& sequence) {
    if (!sequence.cancelled) return;
    events.push_back({.request = sequence.id});
    finish(sequence, events.back(), FinishReason::kCancelled);
  };
  for (auto& sequence : waiting_) end(*sequence);
  for (auto& sequence : running_) end(*sequence);
  std::erase_if(waiting_, [](const auto& sequence) { return sequence->finished; });
  retire_finished();
}

void Engine::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_sequences) {
    start(*waiting_.front());
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// Takes over what the retained request computed of the same tokens.
void Engine::start(Sequence& sequence) {
  if (retained_ != nullptr) {
    SequenceState& state = *retained_->state;
    const auto [ours, theirs] = std::mismatch(sequence.tokens.begin(), sequence.tokens.end(),
                                              retained_->tokens.begin(), retained_->tokens.end());
    // The last prompt token is always computed: its logits are needed.
    const int64_t common = std::min<int64_t>({ours - sequence.tokens.begin(), state.length(),
                                              static_cast<int64_t>(sequence.tokens.size()) - 1});
    if (common > 0 && state.truncate(common)) {
      sequence.state.emplace(std::move(state));
      sequence.drafter_key = retained_->drafter_key;
      sequence.drafter_length = common;
      if (speculation_) speculation_->rewind(sequence.drafter_key, common);
      stats_.reused_tokens += common;
    } else {
      forget_drafts(*retained_);
    }
    retained_.reset();
  }
  if (!sequence.state) sequence.state.emplace(pool_);
}

void Engine::plan_step() {
  pending_.clear();
  owners_.clear();
  for (auto& sequence : running_) {
    std::span<const int32_t> tokens = sequence->tokens;
    tokens = tokens.subspan(static_cast<size_t>(sequence->state->length()));
    int64_t num_drafts = 0;
    if (!sequence->with_drafts.empty()) {
      tokens = sequence->with_drafts;
      num_drafts = static_cast<int64_t>(tokens.size()) - 1;
    }
    pending_.push_back({&*sequence->state, tokens, WantedLogits::kLast, num_drafts});
    owners_[&*sequence->state] = sequence.get();
  }
  plan_chunks(pending_, chunk_options(loaded_.model(), options_, max_context_), plan_);
}

// Draws from the step's rows of logits, which begin at `row`: each draft that is the token drawn
// makes the next row count too. Returns the number of tokens drawn, which is that of the step's
// tokens that hold; rows after them come to nothing.
int64_t Engine::accept_rows(Sequence& sequence, const SequenceStep& step, const StepResult& result,
                            size_t& row, std::vector<TokenEvent>& events) {
  const size_t first = row;
  row += num_logits_rows(step);
  int64_t drawn = 0, accepted = 0;
  for (size_t i = first; i < row; ++i) {
    events.push_back(accept_logits(sequence, result, i));
    ++drawn;
    if (!events.back().token || i + 1 == row) break;
    if (events.back().token->token != step.tokens[i - first + 1]) break;
    ++accepted;
    if (sequence.finished) break;
  }
  if (speculation_ && sequence.asked_drafts > 0) {
    const int64_t planned = static_cast<int64_t>(step.tokens.size()) - 1;
    const bool cut = planned + 1 < static_cast<int64_t>(sequence.with_drafts.size());
    speculation_->observe_drafts(cut ? planned : sequence.asked_drafts, planned, accepted);
  }
  return drawn;
}

// `row`: the number of that row in the step.
TokenEvent Engine::accept_logits(Sequence& sequence, const StepResult& result, size_t row) {
  const LogitsRow& summary = result.rows[row];
  TokenEvent event{.request = sequence.id};
  if (!summary.finite) {
    event.error = "the model produced NaN or infinite logits";
    finish(sequence, event, FinishReason::kError);
    return event;
  }
  const SamplingParams& sampling = sequence.request.sampling;
  if (sampling.takes_largest()) {
    if (summary.largest >= 0) event.token = SampledToken{.token = summary.largest};
  } else if (!result.drawn.empty()) {
    event.token = sampled_token(result.drawn[row], sampling);
  } else {
    event.token =
        sampler_.sample(runner_.logits_row(row), sampling, &sequence.history, sequence.next_key());
  }
  if (!event.token) {
    event.error = "no token can be drawn: all are suppressed";
    finish(sequence, event, FinishReason::kError);
    return event;
  }
  accept_token(sequence, event);
  return event;
}

void Engine::accept_token(Sequence& sequence, TokenEvent& event) {
  const int32_t token = event.token->token;
  sequence.tokens.push_back(token);
  ++stats_.generated_tokens;
  if (sequence.request.sampling.has_penalties()) sequence.history.add_output(token);
  if (sequence.stop.is_stop_id(token)) {
    finish(sequence, event, FinishReason::kStop);
    return;
  }
  if (sequence.decoder) {
    event.text = sequence.stop.feed(sequence.decoder->push(token));
    if (sequence.stop.stopped()) {
      finish(sequence, event, FinishReason::kStop);
      return;
    }
  }
  const int64_t limit = sequence.request.max_new_tokens;
  const bool full = static_cast<int64_t>(sequence.tokens.size()) >= max_context_;
  if (full || (limit > 0 && sequence.num_generated() >= limit)) {
    finish(sequence, event, FinishReason::kLength);
  }
}

// Flushes the text that was held back: nothing is lost, whatever the reason.
void Engine::finish(Sequence& sequence, TokenEvent& event, FinishReason reason) {
  if (sequence.decoder && !sequence.stop.stopped()) {
    event.text += sequence.stop.feed(sequence.decoder->flush());
    if (!sequence.stop.stopped()) {
      event.text += sequence.stop.finish();
    } else if (reason == FinishReason::kLength) {
      reason = FinishReason::kStop;  // the bytes that were held back completed a stop string
    }
  }
  event.finish = reason;
  sequence.finished = true;
  sequence.failed = reason == FinishReason::kError;
}

// Tells the drafter what the step has added and lets it guess what comes next.
void Engine::draft_next(const Flight& flight, const StepResult& result) {
  int64_t num_decoding = 0;
  for (const auto& sequence : running_) {
    const int64_t pending =
        static_cast<int64_t>(sequence->tokens.size()) - sequence->state->length();
    if (!sequence->finished && pending == 1) ++num_decoding;
  }
  const int64_t asked = speculation_->begin_round(num_decoding);

  draft_requests_.clear();
  int64_t end_row = 0;
  for (size_t i = 0; i < flight.owners.size(); ++i) {
    const SequenceStep& step = flight.plan.sequences[i];
    Sequence& sequence = *flight.owners[i];
    const int64_t first_row = end_row;
    end_row += static_cast<int64_t>(step.tokens.size());
    const int64_t length = step.sequence->length();
    const int64_t num_tokens = static_cast<int64_t>(sequence.tokens.size());
    sequence.asked_drafts = 0;
    // What a later request may take over must be complete.
    if (sequence.finished && (!options_.reuse_last || sequence.failed)) continue;
    if (!sequence.finished && num_tokens - length == 1) {
      // With all of them accepted, the step draws one token more.
      int64_t room = std::min(max_context_ - num_tokens, runner_.max_step_tokens()) - 1;
      const int64_t limit = sequence.request.max_new_tokens;
      if (limit > 0) room = std::min(room, limit - sequence.num_generated() - 1);
      sequence.asked_drafts = std::clamp<int64_t>(asked, 0, std::max<int64_t>(room, 0));
    }
    DraftRequest request{.sequence = sequence.drafter_key,
                         .tokens = sequence.tokens,
                         .target = step.sequence,
                         .max_drafts = sequence.asked_drafts,
                         .sampling = &sequence.request.sampling,
                         .key = sequence.next_key()};
    if (!result.hidden.empty()) {
      request.hidden = result.hidden;
      request.first_hidden = first_row;
      request.num_hidden = length - sequence.drafter_length;
    }
    sequence.drafter_length = length;
    if (sequence.request.sampling.has_penalties()) request.history = &sequence.history;
    draft_requests_.push_back(std::move(request));
  }
  speculation_->draft(draft_requests_);
  size_t next = 0;
  for (Sequence* owner : flight.owners) {
    Sequence& sequence = *owner;
    sequence.with_drafts.clear();
    if (sequence.finished && (!options_.reuse_last || sequence.failed)) continue;
    const std::vector<int32_t>& drafts = draft_requests_[next++].drafts;
    if (drafts.empty()) continue;
    sequence.with_drafts.push_back(sequence.tokens.back());
    sequence.with_drafts.insert(sequence.with_drafts.end(), drafts.begin(), drafts.end());
  }
}

void Engine::forget_drafts(const Sequence& sequence) {
  if (speculation_) speculation_->forget(sequence.drafter_key);
}

void Engine::retire_finished() {
  for (Flight& flight : flights_) {
    for (Sequence*& owner : flight.owners) {
      if (owner != nullptr && owner->finished) owner = nullptr;
    }
  }
  for (auto& sequence : running_) {
    if (!sequence->finished) continue;
    // What failed may have left anything in the cache.
    if (options_.reuse_last && !sequence->failed) {
      if (retained_ != nullptr) forget_drafts(*retained_);
      retained_ = std::move(sequence);
    } else {
      forget_drafts(*sequence);
    }
  }
  std::erase_if(running_,
                [](const auto& sequence) { return sequence == nullptr || sequence->finished; });
}

void Engine::reset_stats() {
  stats_ = {};
  if (speculation_) speculation_->reset_stats();
}

std::optional<SpeculationStats> Engine::speculation_stats() const {
  if (!speculation_) return std::nullopt;
  return speculation_->stats();
}

}  // namespace braid

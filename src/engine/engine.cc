#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/check.h"
#include "base/error.h"

namespace braid {
namespace {

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

CacheOptions cache_options(const EngineOptions& options, int64_t max_context) {
  // A retained sequence keeps its pages while another starts.
  const int64_t sequences = options.max_sequences + (options.reuse_last ? 1 : 0);
  return {.kv_dtype = options.kv_dtype,
          .max_tokens = sequences * max_context,
          .max_sequences = sequences,
          .max_sequence_tokens = max_context,
          .max_step_tokens = std::min(options.batch_tokens, max_context)};
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

struct Engine::Sequence {
  Sequence(RequestId id, GenerationRequest request, uint64_t seed, const Tokenizer* tokenizer)
      : id(id), request(std::move(request)), seed(seed), stop(this->request.stop) {
    tokens = this->request.prompt;
    if (tokenizer != nullptr) decoder.emplace(*tokenizer, /*skip_special=*/true);
    if (this->request.sampling.has_penalties()) history.add_prompt(tokens);
  }

  int64_t num_generated() const {
    return static_cast<int64_t>(tokens.size() - request.prompt.size());
  }

  RequestId id;
  GenerationRequest request;
  uint64_t seed;
  std::vector<int32_t> tokens;         // prompt and output
  std::optional<SequenceState> state;  // of the first state->length() tokens; set once admitted
  TokenHistory history;
  std::optional<StreamDecoder> decoder;
  StopChecker stop;
  bool cancelled = false;
  bool finished = false;
  bool failed = false;
};

Engine::Engine(const LoadedModel& loaded, const EngineOptions& options)
    : loaded_(loaded),
      options_(options),
      max_context_(resolve_context(loaded.model(), options.max_context)),
      threads_(options.threads),
      stream_(threads_),
      pool_(loaded.model().cache_layout(), cache_options(options, max_context_)),
      runner_(loaded.model(), pool_, stream_, {.precision = options.precision}) {}

Engine::~Engine() = default;

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
  std::sort(events.begin(), events.end(),
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
      stats_.reused_tokens += common;
    }
    retained_.reset();
  }
  if (!sequence.state) sequence.state.emplace(pool_);
}

void Engine::plan_step() {
  pending_.clear();
  owners_.clear();
  for (auto& sequence : running_) {
    const std::span<const int32_t> tokens = sequence->tokens;
    pending_.push_back(
        {&*sequence->state, tokens.subspan(sequence->state->length()), WantedLogits::kLast});
    owners_[&*sequence->state] = sequence.get();
  }
  plan_chunks(pending_, runner_.max_step_tokens(), plan_);
}

void Engine::run_step(std::vector<TokenEvent>& events) {
  const auto begin = std::chrono::steady_clock::now();
  plan_step();
  int64_t prompt_tokens = 0;
  for (const SequenceStep& step : plan_.sequences) {
    const auto& prompt = owners_.at(step.sequence)->request.prompt;
    const int64_t left = static_cast<int64_t>(prompt.size()) - step.sequence->length();
    prompt_tokens += std::clamp<int64_t>(left, 0, static_cast<int64_t>(step.tokens.size()));
  }
  StepResult result;
  try {
    result = runner_.run(plan_);
  } catch (const Error& error) {
    for (const SequenceStep& step : plan_.sequences) {
      Sequence& sequence = *owners_.at(step.sequence);
      events.push_back({.request = sequence.id, .error = error.what()});
      finish(sequence, events.back(), FinishReason::kError);
    }
    return;
  }
  BRAID_CHECK(result.status == StepStatus::kDone, "the cache is sized for every admitted sequence");

  for (size_t i = 0; i < result.rows.size(); ++i) {
    const LogitsRow& row = result.rows[i];
    const std::span<const float> logits(result.logits.row<float>(i),
                                        static_cast<size_t>(result.logits.dim(1)));
    Sequence& sequence = *owners_.at(plan_.sequences[row.sequence].sequence);
    events.push_back(accept_logits(sequence, logits, row.finite));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  stats_.prompt_tokens += prompt_tokens;
  if (prompt_tokens > 0) {
    stats_.prefill_seconds += seconds;
  } else {
    stats_.decode_seconds += seconds;
    stats_.decode_tokens += static_cast<int64_t>(result.rows.size());
  }
}

TokenEvent Engine::accept_logits(Sequence& sequence, std::span<const float> logits, bool finite) {
  TokenEvent event{.request = sequence.id};
  if (!finite) {
    event.error = "the model produced NaN or infinite logits";
    finish(sequence, event, FinishReason::kError);
    return event;
  }
  const SamplingKey key{.seed = sequence.seed,
                        .request = sequence.request.sampling_stream,
                        .position = static_cast<uint64_t>(sequence.tokens.size())};
  event.token = sampler_.sample(logits, sequence.request.sampling, &sequence.history, key);
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

void Engine::retire_finished() {
  for (auto& sequence : running_) {
    if (!sequence->finished) continue;
    // What failed may have left anything in the cache.
    if (options_.reuse_last && !sequence->failed) retained_ = std::move(sequence);
  }
  std::erase_if(running_,
                [](const auto& sequence) { return sequence == nullptr || sequence->finished; });
}

}  // namespace braid

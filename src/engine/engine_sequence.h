#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace braid {

// A request on its way, with what it has come to.
struct Engine::Sequence {
  Sequence(RequestId id, GenerationRequest request, uint64_t seed, const Tokenizer* tokenizer)
      : id(id), request(std::move(request)), seed(seed), stop(this->request.stop), drafter_key(id) {
    tokens = this->request.prompt;
    if (tokenizer != nullptr) decoder.emplace(*tokenizer, /*skip_special=*/true);
    if (this->request.sampling.has_penalties()) history.add_prompt(tokens);
  }

  int64_t num_generated() const {
    return static_cast<int64_t>(tokens.size() - request.prompt.size());
  }

  // Of the next token.
  SamplingKey next_key() const {
    return {.seed = seed, .request = request.sampling_stream, .position = tokens.size()};
  }

  RequestId id;
  GenerationRequest request;
  uint64_t seed;
  std::vector<int32_t> tokens;         // prompt and output
  std::optional<SequenceState> state;  // of the first state->length() tokens; set once admitted
  TokenHistory history;
  std::optional<StreamDecoder> decoder;
  StopChecker stop;
  int64_t drafter_key;               // names it to the drafter
  int64_t drafter_length = 0;        // state->length() in its last round
  int64_t asked_drafts = 0;          // in the last round
  std::vector<int32_t> with_drafts;  // the newest token and guesses of the next ones, if any
  bool cancelled = false;
  bool finished = false;
  bool failed = false;
};

// Rows of logits of a sequence's share of a step.
inline size_t num_logits_rows(const SequenceStep& step) {
  if (step.logits == WantedLogits::kNone) return 0;
  return step.logits == WantedLogits::kAll ? step.tokens.size() : 1;
}

}  // namespace braid

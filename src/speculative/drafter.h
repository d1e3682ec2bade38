#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cache/sequence_state.h"
#include "ops/logits/philox.h"
#include "sampling/sampling_params.h"
#include "sampling/token_history.h"
#include "tensor/tensor_view.h"

namespace braid {

// One sequence's share of a round of drafting, after the target model's step was committed.
struct DraftRequest {
  int64_t sequence = 0;             // names the sequence from round to round
  std::span<const int32_t> tokens;  // all that are known
  // The target's; the tokens from target->length() on are not computed yet. Normally that is the
  // newest one alone, within a long prompt more.
  const SequenceState* target = nullptr;
  // The hidden states of the target's last step, [tokens of the step, hidden size] float32, on the
  // stream's device; empty unless wants_hidden(). Rows [first_hidden, first_hidden + num_hidden)
  // are those of this sequence's tokens [target->length() - num_hidden, target->length()), which
  // the step has added.
  TensorView hidden;
  int64_t first_hidden = 0;
  int64_t num_hidden = 0;
  int64_t max_drafts = 0;  // 0: only take note of the tokens

  // How the target will draw. A drafter with logits draws alike, with the same random numbers, for
  // the best chance to guess right.
  const SamplingParams* sampling = nullptr;
  const TokenHistory* history = nullptr;  // null without penalties
  SamplingKey key;                        // of the first draft; the others follow by position

  std::vector<int32_t> drafts;  // result: at most max_drafts tokens
};

// Guesses the next tokens of sequences. Whatever it answers, the text stays the same: the target
// draws every token itself, and a draft only counts if it is the token drawn. Used by one thread.
class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual std::string_view name() const = 0;  // "mtp"
  // Whether requests must carry the target's hidden states.
  virtual bool wants_hidden() const { return false; }

  // Each sequence at most once. A sequence that is not known yet starts with the round in which its
  // first tokens were computed; every later step of the target on it must be followed by a round.
  virtual void draft(std::span<DraftRequest> requests) = 0;

  // The sequence goes on after its first `length` tokens; those that followed are not its own any
  // more. At most as many as it had when its last round was drafted.
  virtual void rewind(int64_t sequence, int64_t length) = 0;

  // The sequence ended or starts anew.
  virtual void forget(int64_t sequence) = 0;
};

}  // namespace braid

#pragma once

#include <optional>

#include "sampling/sampler.h"
#include "speculative/drafter.h"

namespace braid {

// How a drafter with logits picks a guess.
enum class DraftChoice {
  kSameDraw,  // as the target will: its parameters and its random number for that position
  kHighest,   // the likeliest token after penalties, biases and suppression
};

// Picks the next guess of a request from one row of a draft model's logits.
class DraftSampler {
 public:
  explicit DraftSampler(DraftChoice choice = DraftChoice::kSameDraw) : choice_(choice) {}

  // The next guess of `request` after its drafts so far. Nothing if none can be drawn.
  std::optional<int32_t> pick(std::span<const float> logits, const DraftRequest& request);

 private:
  DraftChoice choice_;
  Sampler sampler_;
};

}  // namespace braid

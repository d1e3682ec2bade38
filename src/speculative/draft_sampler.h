#pragma once

#include <optional>

#include "sampling/sampler.h"
#include "speculative/drafter.h"

namespace braid {

// Picks the next guess of a request from one row of a draft model's logits, as the target will draw
// the token from its own: with the same parameters and random numbers. That is the likeliest guess
// at temperature 0, and one that is right more often than the likeliest at others.
class DraftSampler {
 public:
  // The next guess of `request` after its drafts so far. Nothing if none can be drawn.
  std::optional<int32_t> pick(std::span<const float> logits, const DraftRequest& request);

 private:
  Sampler sampler_;
};

}  // namespace braid

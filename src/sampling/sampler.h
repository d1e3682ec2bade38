#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/logits/row_drawer.h"
#include "sampling/draw_rule.h"

namespace braid {

// Log-probabilities are as DrawnToken has them.
struct SampledToken {
  int32_t token = 0;
  std::optional<float> logprob;            // if num_logprobs is set
  std::vector<TokenLogprob> top_logprobs;  // likeliest first, of equals the lower id
};

// Nothing if no token can be drawn.
std::optional<SampledToken> sampled_token(const DrawnToken& drawn, const SamplingParams& params);

// Draws tokens on the host. The result is a function of the arguments alone; the object only keeps
// scratch memory, so one serves any number of requests, from one thread at a time.
class Sampler {
 public:
  // logits: one row, [vocab]. NaN counts as -inf, +inf as the largest float. params must be valid
  // for its size; history may be null without penalties. Returns nothing if no token can be drawn:
  // all are -inf or suppressed.
  std::optional<SampledToken> sample(std::span<const float> logits, const SamplingParams& params,
                                     const TokenHistory* history, const SamplingKey& key);

 private:
  RowDrawer drawer_;
  std::vector<LogitEdit> edits_;
  DrawnToken drawn_;
};

}  // namespace braid

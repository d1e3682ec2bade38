#include "sampling/sampler.h"

namespace braid {

std::optional<SampledToken> sampled_token(const DrawnToken& drawn, const SamplingParams& params) {
  if (drawn.token < 0) return std::nullopt;
  SampledToken sampled{.token = drawn.token};
  if (params.num_logprobs) {
    sampled.logprob = drawn.logprob;
    sampled.top_logprobs = drawn.top;
  }
  return sampled;
}

std::optional<SampledToken> Sampler::sample(std::span<const float> logits,
                                            const SamplingParams& params,
                                            const TokenHistory* history, const SamplingKey& key) {
  drawer_.draw(logits, make_draw_rule(params, history, {}, key, edits_), drawn_);
  return sampled_token(drawn_, params);
}

}  // namespace braid

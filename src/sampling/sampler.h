#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sampling/candidates.h"
#include "sampling/philox.h"
#include "sampling/sampling_params.h"
#include "sampling/token_history.h"

namespace braid {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// Log-probabilities are those of the model: the log-softmax of its logits, before any processor.
// They are always finite: nothing is reported below kMinLogprob.
struct SampledToken {
  int32_t token = 0;
  std::optional<float> logprob;            // if num_logprobs is set
  std::vector<TokenLogprob> top_logprobs;  // likeliest first, of equals the lower id
};

constexpr float kMinLogprob = -9999;

// Draws tokens. The result is a function of the arguments alone; the object only keeps scratch
// memory, so one serves any number of requests, from one thread at a time.
class Sampler {
 public:
  // logits: one row, [vocab]. NaN counts as -inf, +inf as the largest float. params must be valid
  // for its size; history may be null without penalties. Returns nothing if no token can be drawn:
  // all are -inf or suppressed.
  std::optional<SampledToken> sample(std::span<const float> logits, const SamplingParams& params,
                                     const TokenHistory* history, const SamplingKey& key);

  // The token that sample() draws, without log-probabilities.
  std::optional<int32_t> pick(std::span<const float> logits, const SamplingParams& params,
                              const TokenHistory* history, const SamplingKey& key);

 private:
  void process(std::span<const float> logits, const SamplingParams& params,
               const TokenHistory* history);
  int32_t draw(const SamplingParams& params, const SamplingKey& key);
  void report_logprobs(std::span<const float> logits, int32_t num_logprobs, SampledToken& sampled);

  std::vector<float> logits_;  // after the processors
  std::vector<Candidate> candidates_;
  std::vector<Candidate> scratch_;
};

}  // namespace braid

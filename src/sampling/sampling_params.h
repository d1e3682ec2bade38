#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace braid {

struct LogitBias {
  int32_t token = 0;
  float bias = 0;
};

// How one request draws its tokens. The processors run in this order:
//   1. penalties    repetition (prompt and output): l > 0 ? l / r : l * r for tokens seen;
//                   frequency and presence (output only): l -= frequency * count + presence
//   2. bias         l += bias
//   3. suppression  l = -inf
//   4. temperature  0 takes the highest logit, of equals the lowest id, and ignores what follows
//   5. top_k        the k highest; equals are taken by ascending id
//   6. top_p        the fewest of those, highest first, that hold at least top_p of their mass
//   7. min_p        those with at least min_p times the probability of the likeliest
struct SamplingParams {
  float temperature = 1;  // >= 0
  int32_t top_k = 0;      // 0 (or -1): off
  float top_p = 1;        // (0, 1]; 1: off
  float min_p = 0;        // [0, 1]; 0: off
  float repetition_penalty = 1;
  float presence_penalty = 0;           // [-2, 2]
  float frequency_penalty = 0;          // [-2, 2]
  std::vector<LogitBias> logit_bias;    // [-100, 100], each token once
  std::vector<int32_t> suppress_ids;    // never drawn
  std::optional<uint64_t> seed;         // absent: the engine picks one
  std::optional<int32_t> num_logprobs;  // absent: none; n: of the drawn and of the n likeliest

  bool greedy() const { return temperature == 0; }
  // The token of the highest logit, and nothing else, is all there is to find.
  bool takes_largest() const {
    return greedy() && !has_penalties() && logit_bias.empty() && suppress_ids.empty() &&
           !num_logprobs;
  }
  // Whether the tokens so far matter.
  bool has_penalties() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

// Throws Error naming the parameter, its value and the legal range.
void validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace braid

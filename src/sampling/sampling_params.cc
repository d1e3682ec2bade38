#include "sampling/sampling_params.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace braid {
namespace {

constexpr int32_t kMaxLogprobs = 1000;

// NaN is in no range.
void check_range(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return;
  throw Error("{} is {}, must be from {} to {}", name, value, low, high);
}

void check_token(const char* name, int32_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return;
  throw Error("{} names token {}, the vocabulary has {}", name, token, vocab_size);
}

}  // namespace

void validate(const SamplingParams& params, int64_t vocab_size) {
  if (!std::isfinite(params.temperature) || params.temperature < 0) {
    throw Error("temperature is {}, must be a number of at least 0", params.temperature);
  }
  if (params.top_k < -1) {
    throw Error("top_k is {}, must be at least 0 (0 or -1 turns it off)", params.top_k);
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    throw Error("top_p is {}, must be above 0 and at most 1", params.top_p);
  }
  check_range("min_p", params.min_p, 0, 1);
  if (!std::isfinite(params.repetition_penalty) || params.repetition_penalty <= 0) {
    throw Error("repetition_penalty is {}, must be a number above 0", params.repetition_penalty);
  }
  check_range("presence_penalty", params.presence_penalty, -2, 2);
  check_range("frequency_penalty", params.frequency_penalty, -2, 2);

  std::vector<int32_t> biased;
  for (const LogitBias& entry : params.logit_bias) {
    check_token("logit_bias", entry.token, vocab_size);
    check_range("logit_bias", entry.bias, -100, 100);
    biased.push_back(entry.token);
  }
  std::sort(biased.begin(), biased.end());
  if (const auto twice = std::adjacent_find(biased.begin(), biased.end()); twice != biased.end()) {
    throw Error("logit_bias names token {} twice", *twice);
  }
  for (const int32_t token : params.suppress_ids) check_token("suppress_ids", token, vocab_size);
  if (params.num_logprobs && (*params.num_logprobs < 0 || *params.num_logprobs > kMaxLogprobs)) {
    throw Error("logprobs is {}, must be from 0 to {}", *params.num_logprobs, kMaxLogprobs);
  }
}

}  // namespace braid

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sampling/sampler.h"
#include "sampling/sampling_params.h"
#include "sampling/stop_checker.h"

namespace braid {

using RequestId = int64_t;

// What to generate: native types only, ready to compute.
struct GenerationRequest {
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  StopConditions stop;
  int64_t max_new_tokens = -1;  // at least 1; -1: until the context is full
  // Keeps requests that share a seed apart (a batch uses the line number); see SamplingKey.
  uint64_t sampling_stream = 0;
};

enum class FinishReason {
  kStop,    // a stop id or stop string
  kLength,  // max_new_tokens, or the context is full
  kCancelled,
  kError,  // see TokenEvent::error
};
std::string_view finish_reason_name(FinishReason reason);

// One step's news of one request.
struct TokenEvent {
  RequestId request = 0;
  std::string text;                    // new text, whole UTF-8 characters; may be empty
  std::optional<SampledToken> token;   // the token drawn in this step; stop tokens included
  std::optional<FinishReason> finish;  // set in the request's last event
  std::string error;
};

}  // namespace braid

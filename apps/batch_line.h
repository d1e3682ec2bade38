#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "apps/chat_prompt.h"
#include "engine/generation.h"
#include "engine/loaded_model.h"

namespace braid {

// What a line of a batch does not say itself.
struct BatchDefaults {
  ChatSettings chat;
  SamplingParams sampling;
  StopConditions stop;
  int64_t max_new_tokens = 256;
};

// One line of a batch: a request, or why it is none.
struct BatchLine {
  std::string id_json;  // the line's "id" as JSON, or empty
  GenerationRequest request;
  std::string error;
};

// `index` is the line's number, from 0; it keeps the random numbers of lines with one seed apart.
BatchLine parse_batch_line(std::string_view line, int64_t index, const LoadedModel& loaded,
                           const BatchDefaults& defaults);

// The result of a line.
struct BatchResult {
  int64_t index = 0;
  std::string id_json;
  std::string text;
  std::string finish_reason;
  std::string error;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
};

// As JSON, without a line break: {"index", "id", "text", "finish_reason", "usage"}, or "error"
// instead of the last three.
std::string to_json_line(const BatchResult& result);

// What an earlier run left about a line. Throws Error if the text is not of to_json_line().
struct WrittenResult {
  int64_t index = 0;
  bool failed = false;
  bool cancelled = false;
};
WrittenResult parse_json_line(std::string_view line);

}  // namespace braid

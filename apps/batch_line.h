#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "apps/batch_run.h"
#include "engine/generation.h"

namespace braid {

// One line of a batch: a request, or why it is none.
struct BatchLine {
  std::string id_json;  // the line's "id" as JSON, or empty
  GenerationRequest request;
  std::string error;
};

// `index` is the line's number, from 0; it keeps the random numbers of lines with one seed apart.
BatchLine parse_batch_line(std::string_view line, int64_t index, const LoadedModel& loaded,
                           const ChatTemplate* chat, const BatchOptions& options);

// The result of a line as JSON, without a line break.
struct BatchResult {
  int64_t index = 0;
  std::string id_json;
  std::string text;
  std::string finish_reason;
  std::string error;
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
};
std::string to_json_line(const BatchResult& result);

}  // namespace braid

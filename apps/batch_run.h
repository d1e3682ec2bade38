#pragma once

#include <filesystem>
#include <string>

#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace braid {

struct BatchOptions {
  std::filesystem::path prompts;  // JSONL; "-": standard input
  std::filesystem::path output;   // JSONL; empty: standard output
  bool resume = false;            // keep the complete lines of `output` and go on after them
  SamplingParams sampling;        // defaults of each line
  StopConditions stop;
  int64_t max_new_tokens = 256;
};

// Generates for every line of a JSONL file: {"prompt": TEXT} or {"messages": [...]} or {"ids":
// [...]}, and optionally "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop",
// "id". Writes one line for each, in input order, as soon as its turn has come: {"index", "id",
// "text", "finish_reason", "usage"} or {"index", "id", "error"}. Ctrl-C ends what runs, writes what
// there is of it, and marks the rest as cancelled. Returns true if every line was generated.
bool run_batch(Engine& engine, const LoadedModel& loaded, const ChatTemplate* chat,
               const BatchOptions& options);

}  // namespace braid

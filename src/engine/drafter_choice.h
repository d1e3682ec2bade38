#pragma once

#include <string>
#include <string_view>

#include "engine/loaded_model.h"
#include "speculative/drafter_setup.h"

namespace braid {

// Which drafter, as --speculate names it.
struct DrafterChoice {
  enum class Kind { kOff, kNgram, kMtp, kModel, kAssistant };
  Kind kind = Kind::kOff;
  std::string path;  // of the draft model: a folder, a .gguf file or "demo:NAME"
};

// "mtp", "assistant:PATH", "model:PATH", "ngram" or "off". Throws UsageError that lists them.
DrafterChoice parse_drafter(std::string_view text);

// Throws Error if the target has no head of the kind.
void check_drafter(const DrafterChoice& choice, const LoadedModel& target);

// Loads what the choice needs; for kOff the result is empty. Throws Error if it does not go with
// the target: no head of the kind, another vocabulary or tokenizer, other sizes. The target must
// outlive the factory and what it makes.
DrafterFactory load_drafter(const DrafterChoice& choice, const LoadedModel& target);

}  // namespace braid

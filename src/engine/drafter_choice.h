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

// Throws Error if the choice does not go with the target: no head of the kind, another vocabulary
// or tokenizer (of targets that came with theirs), other sizes. Reads no weights, and needs none of
// the target's: it may be one that is only described (LoadOptions::read_ahead false).
void check_drafter(const DrafterChoice& choice, const LoadedModel& target);

// Loads what the choice needs, after check_drafter(); for kOff the result is empty. The target must
// outlive the factory and what it makes.
DrafterFactory load_drafter(const DrafterChoice& choice, const LoadedModel& target);

}  // namespace braid

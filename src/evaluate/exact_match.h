#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace braid {

// A prompt whose greedy continuation is to be one of the answers.
struct GenerationItem {
  std::string id;
  std::string prompt;
  std::vector<std::string> answers;  // at least one
  std::vector<std::string> stop;
  std::string filter;  // regular expression; empty: none
  int64_t max_new_tokens = 64;
};

struct GenerationAnswer {
  std::string text;                      // as generated, without the stop string
  std::optional<std::string> extracted;  // nothing: the filter does not match
  bool correct = false;
};

struct GenerationScore {
  int64_t num_items = 0;
  double exact_match = 0, exact_match_error = 0;  // standard error: multiple_choice.h
  std::vector<GenerationAnswer> answers;          // in the order of the items
};

// What of a reply is compared with the answers: what the filter's first match covers (all of the
// reply without one), without blanks around it. Throws Error for a filter that cannot be compiled.
std::optional<std::string> extract_answer(const std::string& text, const std::string& filter);

// Throws Error naming `origin` and the item whose request the engine refuses or that fails.
GenerationScore score_generation(Engine& engine, const LoadedModel& loaded,
                                 std::span<const GenerationItem> items, const std::string& origin,
                                 bool add_bos,
                                 const std::function<void(int64_t done)>& progress = nullptr);

}  // namespace braid

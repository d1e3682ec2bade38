#include "evaluate/exact_match.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "evaluate/multiple_choice.h"
#include "tokenizer/regex.h"

namespace braid {
namespace {

std::string without_blanks_around(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

GenerationRequest make_request(const LoadedModel& loaded, const GenerationItem& item, size_t index,
                               bool add_bos) {
  GenerationRequest request;
  request.prompt = loaded.tokenizer().encode(item.prompt, {.add_bos = add_bos});
  request.sampling.temperature = 0;
  request.sampling.suppress_ids = loaded.generation().suppress_ids;
  request.stop = {.ids = loaded.generation().stop_ids, .strings = item.stop};
  request.max_new_tokens = item.max_new_tokens;
  request.sampling_stream = index;
  return request;
}

}  // namespace

std::optional<std::string> extract_answer(const std::string& text, const std::string& filter) {
  if (filter.empty()) return without_blanks_around(text);
  const std::vector<TextRange> matches = Regex(filter).find_all(text);
  if (matches.empty()) return std::nullopt;
  return without_blanks_around(
      text.substr(matches.front().begin, matches.front().end - matches.front().begin));
}

GenerationScore score_generation(Engine& engine, const LoadedModel& loaded,
                                 std::span<const GenerationItem> items, const std::string& origin,
                                 bool add_bos, const std::function<void(int64_t done)>& progress) {
  GenerationScore score;
  score.num_items = std::ssize(items);
  score.answers.resize(items.size());
  std::unordered_map<RequestId, size_t> running;
  const auto fail = [&](size_t index, const std::string& why) {
    throw Error("{}: item {}: {}", origin, items[index].id, why);
  };
  for (size_t i = 0; i < items.size(); ++i) {
    try {
      extract_answer("", items[i].filter);
      running[engine.submit(make_request(loaded, items[i], i, add_bos))] = i;
    } catch (const Error& error) {
      fail(i, error.what());
    }
  }
  int64_t done = 0;
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) {
      const size_t index = running.at(event.request);
      score.answers[index].text += event.text;
      if (!event.finish) continue;
      if (*event.finish == FinishReason::kError) fail(index, event.error);
      if (progress) progress(++done);
    }
  }
  for (size_t i = 0; i < items.size(); ++i) {
    GenerationAnswer& answer = score.answers[i];
    answer.extracted = extract_answer(answer.text, items[i].filter);
    answer.correct = answer.extracted &&
                     std::any_of(items[i].answers.begin(), items[i].answers.end(),
                                 [&](const std::string& expected) {
                                   return without_blanks_around(expected) == *answer.extracted;
                                 });
    score.exact_match += answer.correct ? 1 : 0;
  }
  score.exact_match /= static_cast<double>(score.num_items);
  score.exact_match_error = standard_error(score.exact_match, score.num_items);
  return score;
}

}  // namespace braid

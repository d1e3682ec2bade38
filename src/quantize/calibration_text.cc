#include "quantize/calibration_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace braid {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// A number for each (seed, index), evenly spread (the finaliser of splitmix64).
uint64_t mix(uint64_t seed, uint64_t index) {
  uint64_t x = seed + 0x9e3779b97f4a7c15u * (index + 1);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

std::string text_of_lines(std::string_view lines, const std::string& origin) {
  std::string text;
  for (size_t begin = 0, number = 1; begin < lines.size(); ++number) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(kBlanks) == line.npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) throw Error("{}:{}: not a JSON object", origin, number);
    const auto field = json.find("text");
    if (field == json.end() || !field->is_string()) {
      throw Error("{}:{}: no field \"text\" with a string", origin, number);
    }
    text += field->get<std::string>();
    text += "\n\n";
  }
  return text;
}

}  // namespace

CalibrationTokens calibration_from_text(std::string_view text, const std::string& origin,
                                        const Tokenizer& tokenizer,
                                        const CalibrationTextOptions& options) {
  std::string of_lines;
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) throw Error("{}: the calibration text is empty", origin);
  if (text[first] == '{') {
    of_lines = text_of_lines(text, origin);
    text = of_lines;
  }
  const std::vector<TokenId> ids = tokenizer.encode(text, {.special = SpecialTokens::kPlainText});
  const bool bos = tokenizer.adds_bos() && tokenizer.bos_id();
  const int64_t own = options.length - (bos ? 1 : 0);  // tokens of text in a piece
  const int64_t pieces = own > 0 ? static_cast<int64_t>(ids.size()) / own : 0;
  if (pieces == 0) {
    throw Error(
        "{}: {} tokens, too few for one sequence of {}; give more text or a smaller "
        "--sequence-length",
        origin, ids.size(), options.length);
  }
  std::vector<int64_t> chosen(static_cast<size_t>(pieces));
  for (int64_t i = 0; i < pieces; ++i) chosen[i] = i;
  if (pieces > options.num_sequences) {
    std::stable_sort(chosen.begin(), chosen.end(), [&](int64_t a, int64_t b) {
      return mix(options.seed, static_cast<uint64_t>(a)) <
             mix(options.seed, static_cast<uint64_t>(b));
    });
    chosen.resize(static_cast<size_t>(options.num_sequences));
    std::sort(chosen.begin(), chosen.end());
  }
  CalibrationTokens tokens{.length = options.length, .sequences = {}};
  for (const int64_t piece : chosen) {
    std::vector<int32_t>& sequence = tokens.sequences.emplace_back();
    if (bos) sequence.push_back(*tokenizer.bos_id());
    sequence.insert(sequence.end(), ids.begin() + piece * own, ids.begin() + (piece + 1) * own);
  }
  return tokens;
}

}  // namespace braid

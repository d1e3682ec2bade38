#include "evaluate/multiple_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace braid {
namespace {

int64_t num_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

size_t largest(std::span<const double> values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

ChoiceAnswer judge(const ChoiceItem& item, std::vector<double> log_likelihoods) {
  std::vector<double> by_length;
  for (size_t c = 0; c < item.choices.size(); ++c) {
    const auto length = std::max<int64_t>(num_code_points(item.choices[c]), 1);
    by_length.push_back(log_likelihoods[c] / static_cast<double>(length));
  }
  ChoiceAnswer answer;
  answer.by_sum = largest(log_likelihoods);
  answer.by_length = largest(by_length);
  answer.log_likelihoods = std::move(log_likelihoods);
  return answer;
}

}  // namespace

double standard_error(double share, int64_t n) {
  if (n < 2) return std::numeric_limits<double>::quiet_NaN();
  return std::sqrt(share * (1 - share) / static_cast<double>(n - 1));
}

EncodedChoice encode_choice(const Tokenizer& tokenizer, const ChoiceItem& item, size_t choice,
                            bool add_bos) {
  std::string context = item.query + item.delimiter;
  const size_t end = context.find_last_not_of(" \t\r\n");
  const std::string blanks = context.substr(end == std::string::npos ? 0 : end + 1);
  context.resize(context.size() - blanks.size());
  const EncodeOptions options{.add_bos = add_bos};
  EncodedChoice encoded;
  encoded.tokens = tokenizer.encode(context + blanks + item.choices[choice], options);
  const auto context_tokens = static_cast<int64_t>(tokenizer.encode(context, options).size());
  // Without BOS and query, nothing comes before the first token, which so cannot be scored.
  encoded.first_scored = std::max<int64_t>(context_tokens, 1);
  if (encoded.first_scored >= static_cast<int64_t>(encoded.tokens.size())) {
    throw Error("choice {} brings no token of its own after the query", choice + 1);
  }
  return encoded;
}

ChoiceScore score_choices(LikelihoodScorer& scorer, const Tokenizer& tokenizer,
                          std::span<const ChoiceItem> items, const std::string& origin,
                          bool add_bos, const LikelihoodScorer::Progress& progress) {
  struct Place {
    size_t item, choice;
  };
  std::vector<EncodedChoice> encoded;
  std::vector<Place> places;
  for (size_t i = 0; i < items.size(); ++i) {
    for (size_t c = 0; c < items[i].choices.size(); ++c) {
      try {
        encoded.push_back(encode_choice(tokenizer, items[i], c, add_bos));
        const int64_t limit = scorer.options().max_sequence_tokens;
        if (std::ssize(encoded.back().tokens) > limit) {
          throw Error("{} tokens, but there is room for {}", encoded.back().tokens.size(), limit);
        }
      } catch (const Error& error) {
        throw Error("{}: item {}: {}", origin, items[i].id, error.what());
      }
      places.push_back({i, c});
    }
  }
  std::vector<ScoredSequence> sequences;
  for (const EncodedChoice& each : encoded) sequences.push_back({each.tokens, each.first_scored});

  std::vector<std::vector<double>> sums(items.size());
  for (size_t i = 0; i < items.size(); ++i) sums[i].resize(items[i].choices.size());
  scorer.run(
      sequences,
      [&](size_t index, std::span<const TokenScore> scores) {
        for (const TokenScore& score : scores) {
          sums[places[index].item][places[index].choice] -= score.nll;
        }
      },
      progress, [&](size_t index) { return items[places[index].item].id; });

  ChoiceScore score;
  score.num_items = std::ssize(items);
  for (size_t i = 0; i < items.size(); ++i) {
    score.answers.push_back(judge(items[i], std::move(sums[i])));
    score.accuracy += score.answers[i].by_sum == items[i].gold ? 1 : 0;
    score.normalised_accuracy += score.answers[i].by_length == items[i].gold ? 1 : 0;
  }
  score.accuracy /= static_cast<double>(score.num_items);
  score.normalised_accuracy /= static_cast<double>(score.num_items);
  score.accuracy_error = standard_error(score.accuracy, score.num_items);
  score.normalised_accuracy_error = standard_error(score.normalised_accuracy, score.num_items);
  return score;
}

}  // namespace braid

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evaluate/likelihood_scorer.h"
#include "tokenizer/tokenizer.h"

namespace braid {

// One question: which of the choices is the likeliest continuation of the query?
struct ChoiceItem {
  std::string id;  // "12", or what the file says
  std::string query;
  std::vector<std::string> choices;  // at least two
  size_t gold = 0;
  std::string delimiter = " ";  // between query and choice
};

struct ChoiceAnswer {
  std::vector<double> log_likelihoods;  // of the choices given the query, nats
  size_t by_sum = 0;                    // the choice with the largest, of equals the first
  size_t by_length = 0;                 // with the largest per code point of the choice
};

struct ChoiceScore {
  int64_t num_items = 0;
  double accuracy = 0, accuracy_error = 0;                        // standard error of the mean:
  double normalised_accuracy = 0, normalised_accuracy_error = 0;  // s / √n; NaN for one item
  std::vector<ChoiceAnswer> answers;                              // in the order of the items
};

// Token ids of query + delimiter + choice, and where the choice begins: as the harness has it,
// blanks at the end of query and delimiter belong to the choice, the whole is encoded at once, and
// the choice begins after as many tokens as the query alone has.
struct EncodedChoice {
  std::vector<int32_t> tokens;
  int64_t first_scored = 1;
};
// Throws Error if the choice brings no token of its own.
EncodedChoice encode_choice(const Tokenizer& tokenizer, const ChoiceItem& item, size_t choice,
                            bool add_bos);

// Throws Error naming `origin` and the item if one does not fit the model's context.
ChoiceScore score_choices(LikelihoodScorer& scorer, const Tokenizer& tokenizer,
                          std::span<const ChoiceItem> items, const std::string& origin,
                          bool add_bos, const LikelihoodScorer::Progress& progress = nullptr);

// √(p (1 − p) / (n − 1)), the standard error of a share p of n; NaN for n = 1.
double standard_error(double share, int64_t n);

}  // namespace braid

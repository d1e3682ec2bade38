#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "evaluate/exact_match.h"
#include "evaluate/multiple_choice.h"
#include "evaluate/nll.h"

namespace braid {

// A place of a text where model and reference differ much, with the texts of the tokens.
struct WorstPlace {
  ScoredToken token;
  std::string document;
  std::string context;  // what came before, its end
  std::string target, top, reference_top;
};

struct TaskResult {
  std::string name;  // of the file
  std::optional<std::vector<ChoiceItem>> choice_items;
  std::optional<ChoiceScore> choices, reference_choices;
  std::optional<std::vector<GenerationItem>> generation_items;
  std::optional<GenerationScore> generation, reference_generation;
};

// The error of one linear layer as the quantiser reported it.
struct LayerError {
  std::string name;
  double error = 0;  // relative, of its output on the calibration text, else of its weight
};

// All that one `braid eval` has found.
struct EvalReport {
  std::string model, reference;  // reference empty: none
  // How and where: compute, kv, processor, commit, date, command; in the order to be shown.
  std::vector<std::pair<std::string, std::string>> facts;
  std::optional<NllResult> nll;
  std::vector<WorstPlace> worst;
  std::vector<TaskResult> tasks;
  std::vector<LayerError> layers;  // empty: the model came without a report of its quantisation
};

// "1024", or "shorter" for length 0.
std::string bucket_name(int64_t length);
// The label of bin i: "1e-4" to below the next one's.
std::string kl_bin_label(int bin);
// How the confidence intervals are made, for readers.
std::string interval_method(const NllResult& result);

nlohmann::ordered_json to_json(const EvalReport& report);
// A page with plots that needs no other file; well-formed XML.
std::string to_html(const EvalReport& report);

}  // namespace braid

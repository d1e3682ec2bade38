#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "sampling/sampling_params.h"
#include "sampling/stop_checker.h"

namespace braid {

// How to draw tokens and when to stop, as the command line says it; what it leaves open comes from
// the model's generation_config.json. A model whose files say nothing of sampling is run greedily.
struct SamplingOptions {
  bool greedy = false;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int32_t> top_k;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> seed;          // -1: another each time, as without
  std::vector<std::string> logit_bias;  // "ID=BIAS"
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;

  void add_to(CLI::App& command);
  // Throws UsageError for a value no model can use: before the model is loaded.
  void check() const;
  SamplingParams params(const GenerationDefaults& defaults) const;
  // Stop ids: the union of the model's and those given here; --ignore-eos removes the model's.
  StopConditions stop(const GenerationDefaults& defaults) const;
};

}  // namespace braid

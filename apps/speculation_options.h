#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/device_options.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace braid {

// Drafting: which drafter, and how many tokens.
struct SpeculationCli {
  std::string drafter = "off";
  int64_t draft_tokens = 3;
  std::string policy = "adaptive";

  void add_to(CLI::App& command);
  // Throws UsageError for what cannot be meant. Call before loading.
  void check() const;
  // Throws Error if the drafter does not go with the model, which is only described for that: a
  // matter of moments, where loading may take minutes.
  void check_with(const DeviceOptions& device) const;
  // Loads a draft model if one is asked for. The target must outlive the result.
  SpeculationOptions load(const LoadedModel& target) const;
};

// How drafting went, as a line for people and as JSON.
std::string to_string(const SpeculationStats& stats, const std::string& drafter);
nlohmann::ordered_json to_json(const SpeculationStats& stats, const SpeculationCli& options);

}  // namespace braid

#include "apps/speculation_options.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/drafter_choice.h"

namespace braid {

void SpeculationCli::add_to(CLI::App& command) {
  CLI::Option* speculate =
      command
          .add_option(
              "--speculate", drafter,
              "Draft tokens for the model to verify several at a time; the text stays the same: "
              "mtp (the model's own head), assistant:PATH (Gemma 4 assistant), model:PATH "
              "(smaller model of the same vocabulary), ngram (repeats of the text), off")
          ->option_text("DRAFTER")
          ->capture_default_str();
  command.add_option("--draft-tokens", draft_tokens, "Most tokens drafted at a time")
      ->check(CLI::Range(int64_t{1}, SpeculationOptions::kMaxDrafts))
      ->needs(speculate)
      ->capture_default_str();
  command
      .add_option("--draft-policy", policy,
                  "adaptive: as many drafts as pay, perhaps none; fixed: always --draft-tokens")
      ->check(CLI::IsMember({"adaptive", "fixed"}))
      ->needs(speculate)
      ->capture_default_str();
}

void SpeculationCli::check() const { parse_drafter(drafter); }

void SpeculationCli::check_with(const DeviceOptions& device) const {
  const DrafterChoice choice = parse_drafter(drafter);
  using Kind = DrafterChoice::Kind;
  if (choice.kind == Kind::kOff || choice.kind == Kind::kNgram) return;
  check_drafter(choice, device.load(/*with_tokenizer=*/choice.kind == Kind::kModel,
                                    /*read_ahead=*/false));
}

SpeculationOptions SpeculationCli::load(const LoadedModel& target) const {
  return {.drafter = load_drafter(parse_drafter(drafter), target),
          .max_drafts = draft_tokens,
          .adaptive = policy == "adaptive"};
}

std::string to_string(const SpeculationStats& stats, const std::string& drafter) {
  if (stats.rounds == 0) return fmt::format("speculation ({}): nothing was drafted", drafter);
  std::string line = fmt::format(
      "speculation ({}): {} of {} drafts accepted ({:.1f}%), {:.2f} tokens a step with drafts",
      drafter, stats.num_accepted(), stats.num_drafted(), 100 * stats.acceptance_rate(),
      stats.tokens_per_round());
  if (stats.speed_up) line += fmt::format(", {:.2f} times the plain speed", *stats.speed_up);
  return line;
}

nlohmann::ordered_json to_json(const SpeculationStats& stats, const SpeculationCli& options) {
  nlohmann::ordered_json json;
  json["drafter"] = options.drafter;
  json["draft_tokens"] = options.draft_tokens;
  json["policy"] = options.policy;
  json["rounds"] = stats.rounds;
  json["drafted"] = stats.num_drafted();
  json["accepted"] = stats.num_accepted();
  json["acceptance_rate"] = stats.acceptance_rate();
  json["drafted_by_position"] = stats.drafted;
  json["accepted_by_position"] = stats.accepted;
  json["tokens_per_round"] = stats.tokens_per_round();
  json["draft_seconds"] = stats.draft_seconds;
  json["speed_up"] = nullptr;
  if (stats.speed_up) json["speed_up"] = *stats.speed_up;
  return json;
}

}  // namespace braid

#include "apps/sampling_options.h"

#include <charconv>
#include <limits>

#include "base/error.h"

namespace braid {
namespace {

LogitBias parse_logit_bias(const std::string& text) {
  LogitBias bias;
  const size_t equals = text.find('=');
  if (equals != std::string::npos) {
    const char* begin = text.data();
    const char* end = begin + text.size();
    const auto id = std::from_chars(begin, begin + equals, bias.token);
    const auto value = std::from_chars(begin + equals + 1, end, bias.bias);
    if (id.ec == std::errc() && id.ptr == begin + equals && value.ec == std::errc() &&
        value.ptr == end) {
      return bias;
    }
  }
  throw UsageError("--logit-bias '{}': expected ID=BIAS, for example 262=-5.5", text);
}

// \n, \t, \r and \\ as a shell's user types them; other backslashes stay.
std::string unescape(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    constexpr std::string_view kLetters = "ntr\\", kMeanings = "\n\t\r\\";
    const size_t letter =
        text[i] == '\\' && i + 1 < text.size() ? kLetters.find(text[i + 1]) : std::string::npos;
    result += letter == std::string::npos ? text[i] : kMeanings[letter];
    if (letter != std::string::npos) ++i;
  }
  return result;
}

}  // namespace

void SamplingOptions::add_to(CLI::App& command) {
  const char* group = "Sampling (defaults: the model's generation_config.json)";
  CLI::Option* flag =
      command.add_flag("--greedy", greedy, "Always take the likeliest token")->group(group);
  command.add_option("--temperature,--temp", temperature, "0: greedy")
      ->excludes(flag)
      ->group(group);
  command.add_option("--top-k", top_k, "Draw from the k likeliest tokens (0: all)")->group(group);
  command.add_option("--top-p", top_p, "Draw from the fewest tokens that hold this share")
      ->group(group);
  command.add_option("--min-p", min_p, "Drop tokens below this share of the likeliest")
      ->group(group);
  command.add_option("--repetition-penalty,--repeat-penalty", repetition_penalty, "1: none")
      ->group(group);
  command.add_option("--presence-penalty", presence_penalty, "0: none")->group(group);
  command.add_option("--frequency-penalty", frequency_penalty, "0: none")->group(group);
  command.add_option("--logit-bias", logit_bias, "ID=BIAS, may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("-s,--seed", seed, "Same seed, same text (-1, the default: another each time)")
      ->check(CLI::Range(int64_t{-1}, std::numeric_limits<int64_t>::max(), "INT"))
      ->group(group);
  command
      .add_option(
          "--stop", stop_strings,
          "End the reply before this text (\\n, \\t and \\\\ are understood), may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--stop-id", stop_ids, "End the reply at this token id, may be repeated")
      ->allow_extra_args(false)
      ->group(group);
  command.add_flag("--ignore-eos", ignore_eos, "Do not stop at the model's end tokens")
      ->group(group);
}

void SamplingOptions::check() const {
  try {
    validate(params({}), std::numeric_limits<int32_t>::max());
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError("{}", error.what());
  }
  for (const std::string& text : stop_strings) {
    if (text.empty()) throw UsageError("--stop: the text is empty");
  }
}

SamplingParams SamplingOptions::params(const GenerationDefaults& defaults) const {
  SamplingParams params;
  const bool files_sample = defaults.do_sample.value_or(
      defaults.temperature.has_value() || defaults.top_k.has_value() || defaults.top_p.has_value());
  const bool asked = temperature || top_k || top_p || min_p;
  if (greedy || (!files_sample && !asked)) {
    params.temperature = 0;
  } else {
    params.temperature = temperature.value_or(defaults.temperature.value_or(1.0f));
    params.top_k = top_k.value_or(defaults.top_k.value_or(0));
    params.top_p = top_p.value_or(defaults.top_p.value_or(1.0f));
    params.min_p = min_p.value_or(defaults.min_p.value_or(0.0f));
  }
  params.repetition_penalty =
      repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0f));
  params.presence_penalty = presence_penalty.value_or(0.0f);
  params.frequency_penalty = frequency_penalty.value_or(0.0f);
  if (seed && *seed >= 0) params.seed = static_cast<uint64_t>(*seed);
  params.suppress_ids = defaults.suppress_ids;
  for (const std::string& bias : logit_bias) params.logit_bias.push_back(parse_logit_bias(bias));
  return params;
}

StopConditions SamplingOptions::stop(const GenerationDefaults& defaults) const {
  StopConditions stop;
  if (!ignore_eos) stop.ids = defaults.stop_ids;
  stop.ids.insert(stop.ids.end(), stop_ids.begin(), stop_ids.end());
  for (const std::string& text : stop_strings) stop.strings.push_back(unescape(text));
  return stop;
}

}  // namespace braid

#include "models/yarn_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace braid {
namespace {

constexpr std::array<std::string_view, 8> kKeys = {
    "factor",           "original_max_position_embeddings",
    "attention_factor", "mscale",
    "mscale_all_dim",   "beta_fast",
    "beta_slow",        "truncate"};

double magnitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

}  // namespace

double default_yarn_attention_factor(double factor) { return magnitude(factor, 1); }

std::vector<float> YarnConfig::frequencies(double theta, int64_t rotary_dim) const {
  const double dim = static_cast<double>(rotary_dim);
  // The pair index whose frequency makes this many turns within the original context.
  const auto pair_of_turns = [&](double turns) {
    return dim * std::log(original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  double low = pair_of_turns(beta_fast), high = pair_of_turns(beta_slow);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;

  std::vector<float> result(rotary_dim / 2);
  for (size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    const float wavelength = std::pow(static_cast<float>(theta), exponent);
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1 - std::clamp(ramp, 0.0f, 1.0f);
    const float divided = 1.0f / (static_cast<float>(factor) * wavelength);
    result[i] = divided * (1 - kept) + 1.0f / wavelength * kept;
  }
  return result;
}

bool is_yarn_key(const std::string& key) {
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

YarnConfig read_yarn_config(const ConfigReader& entry) {
  YarnConfig yarn;
  yarn.factor = entry.number("factor");
  yarn.original_positions = entry.number("original_max_position_embeddings");
  yarn.beta_fast = entry.find_number("beta_fast").value_or(yarn.beta_fast);
  yarn.beta_slow = entry.find_number("beta_slow").value_or(yarn.beta_slow);
  yarn.truncate = entry.find_boolean("truncate").value_or(true);
  const double mscale = entry.find_number("mscale").value_or(0);
  const double mscale_all_dim = entry.find_number("mscale_all_dim").value_or(0);
  yarn.attention_factor = default_yarn_attention_factor(yarn.factor);
  if (mscale != 0 && mscale_all_dim != 0) {
    yarn.attention_factor = magnitude(yarn.factor, mscale) / magnitude(yarn.factor, mscale_all_dim);
  }
  if (const auto stated = entry.find_number("attention_factor")) yarn.attention_factor = *stated;
  for (const auto& [key, value] : {std::pair{"factor", yarn.factor},
                                   {"original_max_position_embeddings", yarn.original_positions},
                                   {"beta_fast", yarn.beta_fast},
                                   {"beta_slow", yarn.beta_slow},
                                   {"attention_factor", yarn.attention_factor}}) {
    if (!(value > 0)) entry.fail(key, "must be positive");
  }
  return yarn;
}

}  // namespace braid

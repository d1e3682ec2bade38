#include "checkpoint/generation_defaults.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace braid {
namespace {

// `Reader` is ConfigReader or GgufMetadata: both name file and field in their errors.
template <typename Reader>
int32_t token_id(const Reader& reader, std::string_view key, int64_t value) {
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    reader.fail(key, fmt::format("{} is no token id", value));
  }
  return static_cast<int32_t>(value);
}

template <typename Reader>
void add_ids(const Reader& reader, std::string_view key, std::vector<int32_t>& ids) {
  for (const int64_t value : reader.find_integers(key).value_or(std::vector<int64_t>{})) {
    ids.push_back(token_id(reader, key, value));
  }
}

template <typename Reader>
void set_id(const Reader& reader, std::string_view key, std::optional<int32_t>& id) {
  if (const auto value = reader.find_integer(key)) id = token_id(reader, key, *value);
}

template <typename Reader>
void set_number(const Reader& reader, std::string_view key, double least, double most,
                std::optional<float>& number) {
  const std::optional<double> value = reader.find_number(key);
  if (!value) return;
  // Written so that NaN fails.
  if (!(*value >= least && *value <= most)) {
    reader.fail(key,
                std::isinf(most)
                    ? fmt::format("{} is out of range; it must be at least {}", *value, least)
                    : fmt::format("{} is out of range; it must be {} to {}", *value, least, most));
  }
  number = static_cast<float>(*value);
}

struct SamplingKeys {
  std::string_view temperature, top_k, top_p, min_p, repetition_penalty;
};

template <typename Reader>
void set_sampling(const Reader& reader, const SamplingKeys& keys, GenerationDefaults& defaults) {
  constexpr double kMaxFloat = std::numeric_limits<float>::max();
  set_number(reader, keys.temperature, 0, kMaxFloat, defaults.temperature);
  set_number(reader, keys.top_p, 0, 1, defaults.top_p);
  set_number(reader, keys.min_p, 0, 1, defaults.min_p);
  set_number(reader, keys.repetition_penalty, 0, kMaxFloat, defaults.repetition_penalty);
  if (defaults.repetition_penalty == 0.0f) {
    reader.fail(keys.repetition_penalty, "0 is out of range; 1 is no penalty");
  }
  if (const auto top_k = reader.find_integer(keys.top_k)) {
    // -1 and 0 both stand for all tokens.
    if (*top_k < -1 || *top_k > std::numeric_limits<int32_t>::max()) {
      reader.fail(keys.top_k, fmt::format("{} is no number of tokens", *top_k));
    }
    defaults.top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));
  }
}

void sort_unique(std::vector<int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

GenerationDefaults read_generation_defaults(const ConfigReader& config,
                                            const std::optional<ConfigReader>& generation) {
  GenerationDefaults defaults;
  // From the least to the most specific, as later values replace earlier ones.
  std::vector<ConfigReader> sources;
  if (auto text = config.find_object("text_config")) sources.push_back(*std::move(text));
  sources.push_back(config);
  if (generation) sources.push_back(*generation);
  for (const ConfigReader& source : sources) {
    add_ids(source, "eos_token_id", defaults.stop_ids);
    set_id(source, "bos_token_id", defaults.bos_id);
  }
  if (generation) {
    add_ids(*generation, "suppress_tokens", defaults.suppress_ids);
    set_sampling(*generation, {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"},
                 defaults);
    defaults.do_sample = generation->find_boolean("do_sample");
  }
  sort_unique(defaults.stop_ids);
  sort_unique(defaults.suppress_ids);
  return defaults;
}

GenerationDefaults read_generation_defaults(const GgufMetadata& metadata) {
  GenerationDefaults defaults;
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    add_ids(metadata, key, defaults.stop_ids);
  }
  add_ids(metadata, "tokenizer.ggml.suppress_tokens", defaults.suppress_ids);
  set_id(metadata, "tokenizer.ggml.bos_token_id", defaults.bos_id);
  set_sampling(metadata,
               {"general.sampling.temp", "general.sampling.top_k", "general.sampling.top_p",
                "general.sampling.min_p", "general.sampling.penalty_repeat"},
               defaults);
  sort_unique(defaults.stop_ids);
  sort_unique(defaults.suppress_ids);
  return defaults;
}

}  // namespace braid

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/config_reader.h"
#include "checkpoint/gguf.h"

namespace braid {

// Sampling defaults and stop ids that a model's files ask for.
struct GenerationDefaults {
  // Union of config.json, generation_config.json and GGUF metadata; ascending.
  std::vector<int32_t> stop_ids;
  std::vector<int32_t> suppress_ids;
  std::optional<int32_t> bos_id;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<bool> do_sample;
};

// From config.json (its text_config too) and, if there is one, generation_config.json, whose single
// values win. Throws Error naming file and field of a value that makes no sense.
GenerationDefaults read_generation_defaults(const ConfigReader& config,
                                            const std::optional<ConfigReader>& generation);
// From the tokenizer.ggml.* ids and general.sampling.* values.
GenerationDefaults read_generation_defaults(const GgufMetadata& metadata);

}  // namespace braid

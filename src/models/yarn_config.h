#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config_reader.h"

namespace braid {

// Rotary frequencies stretched for long contexts: low ones are divided by `factor`, high ones kept,
// those between blended; cosines and sines grow with the factor. The same at every length.
// Peng, Quesnelle, Fan, Shippole: "YaRN: Efficient Context Window Extension of Large Language
// Models", 2023; transformers modeling_rope_utils.py.
struct YarnConfig {
  double factor = 1;
  double original_positions = 0;  // the context length that the frequencies were trained for
  double beta_fast = 32;          // turns within it from which a frequency is kept
  double beta_slow = 1;           // and up to which it is divided
  double attention_factor = 1;    // of cosines and sines
  bool truncate = true;           // whole pair indexes bound the blend

  // theta^(−2i / rotary_dim) with the above, in float32 steps as the reference computes them.
  std::vector<float> frequencies(double theta, int64_t rotary_dim) const;
};

// The attention factor of a file that names none.
double default_yarn_attention_factor(double factor);

// Whether `key` of a rotary entry is one of YaRN's own.
bool is_yarn_key(const std::string& key);
// Reads factor, original_max_position_embeddings and, if there, attention_factor, mscale,
// mscale_all_dim, beta_fast, beta_slow and truncate.
YarnConfig read_yarn_config(const ConfigReader& entry);

}  // namespace braid

#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config_reader.h"

namespace braid {

// The rotary settings of one layer kind, as config files state them.
struct RopeConfig {
  enum class Type { kDefault, kLinear, kProportional };

  Type type = Type::kDefault;
  double theta = 10000;
  double partial_rotary_factor = 1;  // kProportional: share of the pairs that turn
  double factor = 1;                 // kLinear, kProportional: frequencies are divided by it

  // One frequency per turning pair, in float32 steps as the reference computes them:
  // theta^(−2i / head_dim) / factor.
  std::vector<float> frequencies(int64_t head_dim) const;
};

// Reads {"rope_type", "rope_theta", "partial_rotary_factor", "factor"}; absent fields keep the
// values of `defaults`. A type or field that is not implemented is an Error: ignoring it would
// change the text.
RopeConfig read_rope_config(const ConfigReader& entry, const RopeConfig& defaults);

}  // namespace braid

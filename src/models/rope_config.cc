#include "models/rope_config.h"

#include <cmath>

namespace braid {

std::vector<float> RopeConfig::frequencies(int64_t head_dim) const {
  int64_t pairs = head_dim / 2;
  if (type == Type::kProportional) {
    pairs = static_cast<int64_t>(partial_rotary_factor * static_cast<double>(head_dim) / 2);
  }
  std::vector<float> result(pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    result[i] = 1.0f / std::pow(static_cast<float>(theta), exponent);
    if (type != Type::kDefault) result[i] /= static_cast<float>(factor);
  }
  return result;
}

RopeConfig read_rope_config(const ConfigReader& entry, const RopeConfig& defaults) {
  RopeConfig rope = defaults;
  for (const std::string& key : entry.keys()) {
    const bool known = key == "rope_type" || key == "type" || key == "rope_theta" ||
                       key == "partial_rotary_factor" || key == "factor";
    if (!known && entry.has(key)) entry.fail(key, "this rotary setting is not implemented");
  }
  const std::string type =
      entry.find_string("rope_type").value_or(entry.find_string("type").value_or(""));
  if (type == "default") {
    rope.type = RopeConfig::Type::kDefault;
  } else if (type == "linear") {
    rope.type = RopeConfig::Type::kLinear;
  } else if (type == "proportional") {
    rope.type = RopeConfig::Type::kProportional;
  } else if (!type.empty()) {
    entry.fail("rope_type", "'" + type + "' is not implemented (default, linear, proportional)");
  }
  rope.theta = entry.find_number("rope_theta").value_or(rope.theta);
  rope.factor = entry.find_number("factor").value_or(rope.factor);
  rope.partial_rotary_factor =
      entry.find_number("partial_rotary_factor").value_or(rope.partial_rotary_factor);
  if (!(rope.theta > 0)) entry.fail("rope_theta", "must be positive");
  if (!(rope.factor > 0)) entry.fail("factor", "must be positive");
  if (!(rope.partial_rotary_factor > 0 && rope.partial_rotary_factor <= 1)) {
    entry.fail("partial_rotary_factor", "must be above 0 and at most 1");
  }
  if (rope.type == RopeConfig::Type::kDefault && rope.factor != 1) {
    entry.fail("factor", "has no meaning for rope_type 'default'");
  }
  if (rope.type != RopeConfig::Type::kProportional && rope.partial_rotary_factor != 1) {
    entry.fail("partial_rotary_factor", "is implemented for rope_type 'proportional' only");
  }
  return rope;
}

}  // namespace braid

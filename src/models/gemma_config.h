#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/config_reader.h"
#include "models/config_checks.h"

namespace braid {

// What the configs of the Gemma families have in common. All throw Error naming file and field.

// Refuses biases and any activation but the tanh form of GELU.
void refuse_unimplemented_gemma(const ConfigReader& text);

// "layer_types" as one flag a layer, true for sliding; nothing if the field is absent.
std::optional<std::vector<bool>> find_sliding_layers(const ConfigReader& text, int64_t num_layers);

}  // namespace braid

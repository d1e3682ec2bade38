#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/gguf.h"
#include "checkpoint/weight_map.h"

namespace braid {

// What the configs of all families check alike.

// num_hidden_layers, or block_count of a GGUF file, within sane limits.
bool is_layer_count(int64_t num_layers);

// Throws Error naming file and field.
void require_positive(const std::string& origin, std::string_view field, int64_t value);

// The embedding table of a GGUF file, by its canonical name: its rows tell the vocabulary. Throws
// Error if there is none or it is no matrix.
const StoredTensor& require_gguf_embedding(const GgufMetadata& metadata, const WeightMap& weights);

}  // namespace braid

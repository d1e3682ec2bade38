#include "models/config_checks.h"

#include "base/error.h"

namespace braid {

bool is_layer_count(int64_t num_layers) { return num_layers > 0 && num_layers <= 100000; }

void require_positive(const std::string& origin, std::string_view field, int64_t value) {
  if (value <= 0) throw Error("{}: {} is {}; it must be positive", origin, field, value);
}

const StoredTensor& require_gguf_embedding(const GgufMetadata& metadata, const WeightMap& weights) {
  const StoredTensor* embedding = weights.find("embed_tokens.weight");
  if (embedding == nullptr) throw Error("{}: tensor token_embd.weight is missing", metadata.origin);
  if (embedding->weight.shape.rank() != 2) {
    throw Error("{}: tensor token_embd.weight: shape {}, expected two dimensions", metadata.origin,
                to_string(embedding->weight.shape));
  }
  return *embedding;
}

}  // namespace braid

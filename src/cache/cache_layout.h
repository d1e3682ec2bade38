#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tensor/dtype.h"

namespace braid {

// What one layer remembers of a sequence.
struct NoCache {
  bool operator==(const NoCache&) const = default;
};
// Keys and values of every token.
struct FullKv {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  bool operator==(const FullKv&) const = default;
};
// Keys and values of the last `window` tokens.
struct WindowKv {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;
  bool operator==(const WindowKv&) const = default;
};
// Reads what an earlier layer wrote; writes nothing.
struct SharesKvOf {
  int64_t layer = 0;
  bool operator==(const SharesKvOf&) const = default;
};
// The state of a Gated DeltaNet layer and the last inputs of its convolution: the same memory
// however long the sequence. See ops/gated_delta/recurrent_store.h.
struct RecurrentState {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t conv_channels = 0;
  int64_t conv_width = 0;
  bool operator==(const RecurrentState&) const = default;
};
using LayerCache = std::variant<NoCache, FullKv, WindowKv, SharesKvOf, RecurrentState>;

// Declared by the model, one entry a layer.
struct CacheLayout {
  std::vector<LayerCache> layers;
};

}  // namespace braid

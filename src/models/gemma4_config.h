#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config_reader.h"
#include "checkpoint/gguf.h"
#include "checkpoint/weight_map.h"
#include "models/rope_config.h"

namespace braid {

// Everything that shapes a Gemma 4 text decoder. Names and defaults follow the Hugging Face config.
struct Gemma4Config {
  struct Layer {
    bool sliding = false;
    int64_t head_dim = 0;
    int64_t num_kv_heads = 0;
    bool values_from_keys = false;    // no v_proj: values are the raw key projection
    std::optional<int64_t> kv_donor;  // reads the keys and values of that layer, has none itself
    int64_t mlp_width = 0;
  };

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t max_positions = 0;
  int64_t sliding_window = 0;
  float rms_norm_eps = 1e-6f;
  std::optional<float> final_logit_softcap;
  bool tied_head = true;
  int64_t per_layer_width = 0;  // P of the per-layer embeddings; 0: none
  int64_t per_layer_vocab_size = 0;
  int64_t num_experts = 0;  // 0: dense
  int64_t top_k_experts = 0;
  int64_t expert_width = 0;
  RopeConfig sliding_rope;
  RopeConfig full_rope;
  bool layer_scalars_required = true;
  // GGUF: what the file says each pair's full-layer frequency is divided by; turns 1e30 into
  // "stays".
  bool rope_factors_in_file = false;
  std::vector<Layer> layers;

  // Whose keys and values the layers that share some read: their own model's, or, of a draft
  // model, whose layers all share, those of the model it drafts for (kv_donor then stays empty).
  enum class KeysAndValues : uint8_t { kOwn, kOfBackbone };

  // From config.json (text_config, if nested, is looked up here). Accepts the flat keys of the
  // release and the newer per_layer_config.
  static Gemma4Config from_json(const ConfigReader& file,
                                KeysAndValues keys_and_values = KeysAndValues::kOwn);
  // From GGUF metadata; a few facts only the tensors tell (vocabulary, missing attn_v).
  static Gemma4Config from_gguf(const GgufMetadata& metadata, const WeightMap& weights,
                                KeysAndValues keys_and_values = KeysAndValues::kOwn);

  // Those of the full layers, with the factors of the file if it holds some.
  std::vector<float> full_rope_frequencies(int64_t head_dim, WeightBinder& binder) const;
};

}  // namespace braid

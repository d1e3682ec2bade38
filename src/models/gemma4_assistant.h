#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_files.h"
#include "layers/gated_mlp.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/rotary.h"
#include "models/gemma4_assistant_config.h"
#include "models/model.h"
#include "models/ordered_head.h"

namespace braid {

// The layers of a model whose keys and values its assistant reads: the last of each kind that has
// its own. -1: there is none.
struct KvDonors {
  int64_t sliding = -1;
  int64_t full = -1;
};
KvDonors find_kv_donors(const CacheLayout& backbone);

// A Gemma 4 assistant: a small decoder that drafts for a larger Gemma 4, the backbone, from its
// hidden states and over its keys and values. It stores nothing. One step drafts one token:
//   x = W_pre·[embed(token) ‖ h], dense Gemma 4 layers without keys and values of their own,
//   y = norm(x), logits = table·y (no soft-cap), h' = W_post·y.
// Mathematics: transformers models/gemma4_assistant/modeling_gemma4_assistant.py.
//
// A step holds one row a sequence. With R tokens of the sequence in the backbone's cache, all of
// them final:
//   token_ids        the newest token; in the drafts that follow the first, the last draft
//   backbone_hidden  [rows, hidden_size]: the backbone's hidden state (after its final norm) of
//                    token R − 1; in the drafts that follow, the h' of the draft before
//   positions        the newest token's position R in all drafts of a round
//   layer_kv[i]      store and page list of the backbone's layer donor_layer(i), as SequenceRows
//                    {row, 1, R − 1, pages}: masks count from the newest row of the cache. Sliding
//                    layers see window + 1 rows
// If wanted, step.hidden gets h', [rows, hidden_size].
class Gemma4Assistant : public Model {
 public:
  // Throws one Error for weights that do not fit the config, or a config that does not fit the
  // backbone. The backbone must outlive the assistant.
  Gemma4Assistant(Gemma4AssistantConfig config, ModelFiles& files, const Model& backbone);

  std::string family() const override { return "gemma4_assistant"; }
  int64_t vocab_size() const override { return config_.decoder.vocab_size; }
  // Of the rows it reads and leaves: the backbone's.
  int64_t hidden_size() const override { return config_.backbone_hidden_size; }
  int64_t num_layers() const override { return static_cast<int64_t>(layers_.size()); }
  int64_t max_positions() const override { return backbone_.max_positions(); }
  CacheLayout cache_layout() const override;  // NoCache throughout
  LayerInfo layer_info(int64_t layer) const override { return layers_[layer].info; }
  const LoadReport& load_report() const override { return load_report_; }
  // The layer of the backbone whose keys and values layer `layer` reads.
  int64_t donor_layer(int64_t layer) const;
  bool has_ordered_head() const { return config_.num_centroids > 0; }
  int64_t shared_elements_per_token() const override;

  // The backbone's embeddings.
  TensorView embed(StepContext& step) const override { return backbone_.embed(step); }
  void place(Placement& placement) override;
  TensorView forward(StepContext& step) const override;

 private:
  struct Layer {
    RmsNorm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm, q_norm;
    Linear q, output;
    GatedMlp mlp;
    float scalar = 1;
    LayerInfo info;
  };

  void check_backbone(const std::string& origin) const;
  Layer bind_layer(WeightBinder& binder, int64_t index) const;
  // x: [rows, width], updated in place.
  void decoder_layer(StepContext& step, int64_t index, const Rotary::Tables& tables,
                     const TensorView& x) const;

  Gemma4AssistantConfig config_;
  const Model& backbone_;
  KvDonors donors_;
  Linear pre_projection_, post_projection_;
  std::vector<Layer> layers_;
  RmsNorm final_norm_;
  Rotary sliding_rope_, full_rope_;
  Linear head_;  // empty if the head is ordered
  OrderedHead ordered_head_;
  LoadReport load_report_;
};

}  // namespace braid

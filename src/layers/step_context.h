#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ops/attention/paged_kv.h"
#include "ops/gated_delta/recurrent_store.h"
#include "ops/linear/linear.h"
#include "tensor/stream.h"
#include "tensor/workspace.h"

namespace braid {

// What every layer of a forward pass sees of the step: the flat batch (rows of all sequences one
// after the other) and where each layer's keys and values go. Built by the runner; constant during
// the pass.
struct StepContext {
  Stream& stream;
  Workspace& workspace;
  ActivationPrecision precision = ActivationPrecision::kF32;

  std::span<const int32_t> token_ids;  // [tokens]
  std::span<const int32_t> positions;  // [tokens]
  // Rows whose logits are wanted, ascending.
  std::span<const int32_t> logits_rows;

  // Per layer: the store it writes (or, if it shares, that of its donor) and the page lists to go
  // with it.
  struct LayerKv {
    PagedKv store;
    std::span<const SequenceRows> sequences;
  };
  std::span<const LayerKv> layer_kv;

  // Per layer: its slots, and what to do with those of the step's sequences. Empty for layers
  // without a recurrent state.
  struct LayerRecurrent {
    RecurrentLayer store;
    std::span<const RecurrentRows> sequences;
  };
  std::span<const LayerRecurrent> layer_recurrent;

  // For draft models that start from another model's hidden states: [tokens, its hidden size].
  TensorView backbone_hidden;
  // If wanted, the model leaves here what a draft model starts from, a row for each token, in the
  // workspace: hidden states after the final norm [tokens, hidden] (of the Gemma assistants: after
  // their output projection).
  bool wants_hidden = false;
  TensorView hidden;

  // If set, called with each layer's output [tokens, hidden] (and the embedding as layer -1).
  struct Observer {
    virtual ~Observer() = default;
    virtual void layer_output(int64_t layer, const TensorView& x) = 0;
  };
  Observer* observer = nullptr;

  // If set, sees the inputs of matrix products before these are computed: in float32, on a CUDA
  // device as they were rounded to bfloat16, if they were. Where the stream computes, as offsets.
  struct ProductObserver {
    virtual ~ProductObserver() = default;
    // x: [tokens, in], which the matrices of these names multiply (Linear::name(); empty: unknown).
    virtual void input(std::span<const std::string_view> readers, const TensorView& x) = 0;
    // x: [pairs, in], sorted by expert; offsets as grouped_linear() takes them. Readers are stacks,
    // without a number: "layers.3.mlp.experts.gate_proj".
    virtual void expert_input(std::span<const std::string_view> readers, const TensorView& x,
                              const TensorView& offsets) = 0;
  };
  ProductObserver* product_observer = nullptr;

  // If set, only these layers run: x, [tokens, hidden], is the input of layer `begin` and becomes
  // the output of layer `end` - 1, and there are no logits.
  struct LayerRange {
    int64_t begin = 0;
    int64_t end = 0;
    TensorView x;
  };
  const LayerRange* layers = nullptr;
  int64_t first_layer() const { return layers != nullptr ? layers->begin : 0; }
  int64_t end_layer(int64_t num_layers) const {
    return layers != nullptr ? layers->end : num_layers;
  }

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
};

}  // namespace braid

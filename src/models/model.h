#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cache/cache_layout.h"
#include "checkpoint/weight_map.h"
#include "layers/layer_streamer.h"
#include "layers/placement.h"
#include "layers/step_context.h"
#include "tensor/tensor_view.h"

namespace braid {

class CachePool;

// A row of `inspect`'s layer table.
struct LayerInfo {
  std::string attention;     // "full 2x512 (K=V)", "sliding 8x256, window 1024"
  std::string feed_forward;  // "dense 2112 + moe 8 of 128 x 704"
  int64_t num_parameters = 0;
  int64_t bytes_read_per_token = 0;  // weights a single decoded token reads
  // What a token's products with the layer's matrices read and write, elements; matrices in a row
  // that read the same are counted once. For planning the workspace.
  double input_elements = 0;
  double output_elements = 0;
};

// A loaded decoder: weights and straight-line code, no state. Immutable, so one model serves any
// number of runners at once.
class Model {
 public:
  virtual ~Model() = default;

  virtual std::string family() const = 0;  // "gemma4"
  virtual int64_t vocab_size() const = 0;
  virtual int64_t hidden_size() const = 0;
  virtual int64_t num_layers() const = 0;
  virtual int64_t max_positions() const = 0;
  virtual CacheLayout cache_layout() const = 0;
  // With which the layer's keys and values are stored as int8, if the checkpoint brings such scales
  // (PagedKv::static_scales). Zeros: it brings none, or the layer stores nothing.
  virtual KvScales kv_scales(int64_t layer) const;
  virtual LayerInfo layer_info(int64_t layer) const = 0;
  virtual const LoadReport& load_report() const = 0;

  // Embeddings of the step's tokens as the first layer gets them, [tokens, hidden_size], in the
  // step's workspace.
  virtual TensorView embed(StepContext& step) const = 0;

  // The multi-token-prediction head that came with the checkpoint, a model of its own that shares
  // this one's weights and lives as long; its steps carry backbone_hidden. Null: there is none.
  virtual const Model* draft_head() const { return nullptr; }

  // Of draft heads: the matrix [vocab, hidden] that makes logits of the hidden states a step
  // leaves, for those who want to do that themselves. Null: it is not as simple as that.
  virtual const Weight* vocabulary_head() const { return nullptr; }

  // Elements that a token takes in the workspace outside the layers, apart from its hidden state,
  // its rotation and its logits.
  virtual int64_t shared_elements_per_token() const { return 0; }

  // Prompts are best split at multiples of this many tokens: then their results do not depend on
  // how they were split. 1: anywhere.
  virtual int64_t prefill_alignment() const { return 1; }

  // Moves all parameters to a device. Call before the model is used.
  virtual void place(Placement& placement) = 0;
  // The same in parts: what no single layer has, and a layer. Layers that are bound anew are on the
  // host again. Throws Error if the family cannot.
  virtual void place_shared(Placement& placement);
  virtual void place_layer(int64_t layer, Placement& placement);
  // Of layers whose weights do not stay there.
  void use_streamer(std::shared_ptr<LayerStreamer> streamer) { streamer_ = std::move(streamer); }

  // Binds a layer anew, to the tensors of `weights` (all that the layer has, by their canonical
  // names), say in another format. Not while a step runs. Throws Error as loading does, or if the
  // family cannot.
  virtual void rebind_layer(int64_t layer, const WeightMap& weights);

  // Runs the step's rows through all layers, writes their keys and values to the cache, and returns
  // float32 logits [step.logits_rows.size(), vocab_size], in the step's workspace.
  virtual TensorView forward(StepContext& step) const = 0;

 protected:
  // Families call these before and after each of their layers is queued.
  void begin_layer(const StepContext& step, int64_t layer) const {
    if (streamer_ != nullptr) streamer_->begin_layer(step, layer);
  }
  void end_layer(const StepContext& step, int64_t layer) const {
    if (streamer_ != nullptr) streamer_->end_layer(step, layer);
  }

 private:
  std::shared_ptr<LayerStreamer> streamer_;
};

// Whether the layers that store keys and values have scales for them. Throws Error naming a tensor
// if only some of them have.
bool has_kv_scales(const Model& model, const std::string& origin);

// What a layer of the model reads and writes of a pool: static scales where the pool is of int8,
// the model has them, and CacheOptions do not want others.
PagedKv layer_kv(const Model& model, const CachePool& pool, int64_t layer);

}  // namespace braid

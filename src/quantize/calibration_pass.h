#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/cache_pool.h"
#include "cache/sequence_state.h"
#include "layers/step_context.h"
#include "models/model.h"
#include "quantize/kv_scales.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"
#include "tensor/workspace.h"

namespace braid {

// Token sequences of one length, from their first position on.
struct CalibrationTokens {
  int64_t length = 0;
  std::vector<std::vector<int32_t>> sequences;

  int64_t num_tokens() const { return length * static_cast<int64_t>(sequences.size()); }
};

// Runs one layer at a time over all sequences, some at once. Keeps what enters the next layer, in
// float32: [tokens, hidden]; keys and values only of a batch, but where layers share those of
// others.
class CalibrationPass {
 public:
  // Borrows all; the model's layers may be replaced in between. The layer that runs, and what the
  // layers share, must be where the stream is.
  CalibrationPass(const Model& model, const CalibrationTokens& tokens, Stream& stream,
                  Workspace& workspace, ActivationPrecision precision);

  struct Enough {};

  // Sequences that run side by side, and the room for keys and values that they get.
  static int64_t batch_size(int64_t sequences, int64_t length, Device device);
  static CacheOptions cache_options(const Model& model, int64_t sequences, int64_t length,
                                    Device device, ActivationPrecision precision);

  // Fills the hidden states with the embedding of the tokens.
  void embed();
  // The layer's inputs stay as they are.
  void observe_layer(int64_t layer, StepContext::ProductObserver& observer);
  // The same of the first `num_batches` of the batches it works in. An observer that has seen all
  // that it wants of a batch may throw Enough.
  void observe_layer(int64_t layer, StepContext::ProductObserver& observer, size_t num_batches);
  // One of them.
  void observe_batch(int64_t layer, StepContext::ProductObserver& observer, size_t batch);
  size_t num_batches() const { return batches_.size(); }
  // Replaces the layer's inputs by its outputs. `kv`, if not null, sees the keys and values of a
  // layer that keeps some; `products` the inputs of its products.
  void run_layer(int64_t layer, KvObserver* kv = nullptr,
                 StepContext::ProductObserver* products = nullptr);
  // Neither a donor's nor none.
  bool keeps_kv(int64_t layer) const;

 private:
  struct Batch {
    size_t first = 0, count = 0;  // sequences
  };

  void copy(const TensorView& from, const TensorView& to) const;
  void run_batch(const Batch& batch, int64_t layer, const TensorView& x,
                 StepContext::ProductObserver* observer);
  TensorView hidden_of(const Batch& batch) const;
  // Its result belongs to the batch until the next call.
  StepContext step_of(const Batch& batch);
  void reserve(size_t count);

  const Model& model_;
  const CalibrationTokens& tokens_;
  Stream& stream_;
  Workspace& workspace_;
  ActivationPrecision precision_;
  bool keeps_all_;  // some layers read keys and values of earlier ones
  std::vector<Batch> batches_;
  CachePool pool_;
  std::vector<SequenceState> states_;  // of all sequences, or of a batch
  Buffer hidden_;

  std::vector<int32_t> token_ids_, positions_;
  std::vector<std::vector<SequenceRows>> group_rows_;
  std::vector<std::vector<RecurrentRows>> recurrent_rows_;
  std::vector<StepContext::LayerKv> layer_kv_;
  std::vector<StepContext::LayerRecurrent> layer_recurrent_;
};

}  // namespace braid

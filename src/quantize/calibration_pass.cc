#include "quantize/calibration_pass.h"

#include <algorithm>
#include <variant>

#include "base/check.h"
#include "tensor/step_tables.h"

namespace braid {
namespace {

constexpr int64_t kBatchTokens = 2048;
constexpr int64_t kDeviceBatchTokens = 8192;

bool shares_keys(const Model& model) {
  const CacheLayout layout = model.cache_layout();
  return std::any_of(layout.layers.begin(), layout.layers.end(), [](const LayerCache& layer) {
    return std::holds_alternative<SharesKvOf>(layer);
  });
}

}  // namespace

int64_t CalibrationPass::batch_size(int64_t sequences, int64_t length, Device device) {
  const int64_t batch_tokens = device.is_cpu() ? kBatchTokens : kDeviceBatchTokens;
  return std::clamp<int64_t>(batch_tokens / length, 1, sequences);
}

CacheOptions CalibrationPass::cache_options(const Model& model, int64_t sequences, int64_t length,
                                            Device device, ActivationPrecision precision) {
  if (!shares_keys(model)) sequences = batch_size(sequences, length, device);
  return {.kv_dtype = precision == ActivationPrecision::kF32 ? DType::kF32 : DType::kBF16,
          .max_tokens = sequences * length,
          .max_sequences = sequences,
          .max_sequence_tokens = length,
          .max_step_tokens = length};
}

CalibrationPass::CalibrationPass(const Model& model, const CalibrationTokens& tokens,
                                 Stream& stream, Workspace& workspace,
                                 ActivationPrecision precision)
    : model_(model),
      tokens_(tokens),
      stream_(stream),
      workspace_(workspace),
      precision_(precision),
      keeps_all_(shares_keys(model)),
      pool_(model.cache_layout(),
            cache_options(model, static_cast<int64_t>(tokens.sequences.size()), tokens.length,
                          stream.device(), precision),
            stream.device()),
      hidden_(static_cast<size_t>(tokens.num_tokens() * model.hidden_size()) * sizeof(float),
              stream.device()) {
  const auto at_once = static_cast<size_t>(
      batch_size(static_cast<int64_t>(tokens.sequences.size()), tokens.length, stream.device()));
  for (size_t first = 0; first < tokens.sequences.size(); first += at_once) {
    batches_.push_back({first, std::min(at_once, tokens.sequences.size() - first)});
  }
  for (int64_t layer = 0; layer < pool_.num_layers(); ++layer) {
    layer_kv_.push_back({layer_kv(model, pool_, layer), {}});
    layer_recurrent_.push_back({pool_.layer_recurrent(layer), {}});
  }
  group_rows_.resize(static_cast<size_t>(pool_.num_groups()));
  recurrent_rows_.resize(static_cast<size_t>(pool_.num_recurrent_groups()));
  if (keeps_all_) reserve(tokens.sequences.size());
}

// Rows are written again and again, layer by layer; nothing is ever committed.
void CalibrationPass::reserve(size_t count) {
  states_.clear();
  for (size_t i = 0; i < count; ++i) {
    const bool found = states_.emplace_back(pool_).reserve(tokens_.length);
    BRAID_CHECK(found, "sequence {} of {}", i, count);
  }
}

TensorView CalibrationPass::hidden_of(const Batch& batch) const {
  const int64_t width = model_.hidden_size();
  const auto first = static_cast<int64_t>(batch.first) * tokens_.length;
  return TensorView(reinterpret_cast<float*>(hidden_.data()) + first * width, DType::kF32,
                    {static_cast<int64_t>(batch.count) * tokens_.length, width}, hidden_.device());
}

void CalibrationPass::copy(const TensorView& from, const TensorView& to) const {
  if (stream_.is_cpu()) {
    std::copy_n(from.data<float>(), from.num_elements(), to.data<float>());
  } else {
    cuda::copy_on_device(stream_.cuda(), to.raw(), from.raw(),
                         static_cast<size_t>(from.num_elements()) * sizeof(float));
  }
}

StepContext CalibrationPass::step_of(const Batch& batch) {
  if (!keeps_all_) reserve(batch.count);
  const size_t first_state = keeps_all_ ? batch.first : 0;
  token_ids_.clear();
  positions_.clear();
  for (auto& rows : group_rows_) rows.clear();
  for (auto& rows : recurrent_rows_) rows.clear();
  for (size_t i = 0; i < batch.count; ++i) {
    const std::vector<int32_t>& sequence = tokens_.sequences[batch.first + i];
    const SequenceState& state = states_[first_state + i];
    const auto first_row = static_cast<int64_t>(i) * tokens_.length;
    token_ids_.insert(token_ids_.end(), sequence.begin(), sequence.end());
    for (int64_t t = 0; t < tokens_.length; ++t) positions_.push_back(static_cast<int32_t>(t));
    for (int g = 0; g < pool_.num_groups(); ++g) {
      group_rows_[g].push_back({first_row, tokens_.length, 0, state.pages(g)});
    }
    for (int g = 0; g < pool_.num_recurrent_groups(); ++g) {
      recurrent_rows_[g].push_back({.first_row = first_row,
                                    .num_rows = tokens_.length,
                                    .slot = state.slot(g),
                                    .fresh = true});
    }
  }
  for (int64_t layer = 0; layer < pool_.num_layers(); ++layer) {
    const int group = pool_.layer_group(layer);
    if (group >= 0) layer_kv_[layer].sequences = group_rows_[group];
    const int recurrent = pool_.layer_recurrent_group(layer);
    if (recurrent >= 0) layer_recurrent_[layer].sequences = recurrent_rows_[recurrent];
  }
  StepContext step{.stream = stream_, .workspace = workspace_, .precision = precision_};
  step.token_ids = token_ids_;
  step.positions = positions_;
  step.layer_kv = layer_kv_;
  step.layer_recurrent = layer_recurrent_;
  return step;
}

void CalibrationPass::embed() {
  for (const Batch& batch : batches_) {
    const Workspace::Scope scope(workspace_);
    StepContext step = step_of(batch);
    const StepTables tables(stream_);
    copy(model_.embed(step), hidden_of(batch));
  }
}

void CalibrationPass::run_batch(const Batch& batch, int64_t layer, const TensorView& x,
                                StepContext::ProductObserver* observer) {
  StepContext step = step_of(batch);
  const StepContext::LayerRange range{.begin = layer, .end = layer + 1, .x = x};
  step.layers = &range;
  step.product_observer = observer;
  const StepTables tables(stream_);
  try {
    model_.forward(step);
  } catch (const Enough&) {
  }
}

void CalibrationPass::observe_layer(int64_t layer, StepContext::ProductObserver& observer) {
  observe_layer(layer, observer, batches_.size());
}

void CalibrationPass::observe_layer(int64_t layer, StepContext::ProductObserver& observer,
                                    size_t num_batches) {
  for (size_t i = 0; i < std::min(num_batches, batches_.size()); ++i) {
    observe_batch(layer, observer, i);
  }
}

void CalibrationPass::observe_batch(int64_t layer, StepContext::ProductObserver& observer,
                                    size_t batch) {
  const Workspace::Scope scope(workspace_);
  const TensorView hidden = hidden_of(batches_[batch]);
  const TensorView x = workspace_.take(DType::kF32, hidden.shape());
  copy(hidden, x);
  run_batch(batches_[batch], layer, x, &observer);
}

void CalibrationPass::run_layer(int64_t layer, KvObserver* kv,
                                StepContext::ProductObserver* products) {
  for (const Batch& batch : batches_) {
    const Workspace::Scope scope(workspace_);
    run_batch(batch, layer, hidden_of(batch), products);
    if (kv != nullptr) kv->add(layer_kv_[layer].store, layer_kv_[layer].sequences);
  }
}

bool CalibrationPass::keeps_kv(int64_t layer) const {
  return pool_.plan().layers.at(layer).owner == layer;
}

}  // namespace braid

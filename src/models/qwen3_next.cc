#include "models/qwen3_next.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/qwen_names.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

bool has_mtp(const Qwen3NextConfig& config, const WeightMap& weights) {
  return weights.is_dummy() ? config.num_mtp_layers > 0 : weights.find("mtp.fc.weight") != nullptr;
}

}  // namespace

Qwen3Next::Qwen3Next(Qwen3NextConfig config, ModelFiles& files) : config_(std::move(config)) {
  WeightBinder binder(files.weights());
  const int64_t hidden = config_.hidden_size;
  embedding_ = Linear(binder.weight("embed_tokens.weight", {config_.vocab_size, hidden}));
  if (config_.tied_head) {
    head_ = embedding_;
    binder.ignore("lm_head.weight", "the head is tied to embed_tokens");
  } else {
    head_ = Linear(binder.weight("lm_head.weight", {config_.vocab_size, hidden}));
  }
  final_norm_ = RmsNorm(binder.f32("norm.weight", {hidden}, config_.storage.norm_offset),
                        config_.rms_norm_eps);
  rotary_ = config_.rotary();
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    layers_.emplace_back(config_, config_.layers[i], binder, fmt::format("layers.{}.", i));
  }
  if (has_mtp(config_, files.weights())) {
    mtp_ = std::make_unique<Qwen3NextMtp>(config_, *this, binder, embedding_, head_);
  }
  ignore_qwen_towers(binder);
  load_report_ = binder.finish();
}

CacheLayout Qwen3Next::cache_layout() const {
  const GatedDeltaNet::Dimensions& delta = config_.delta;
  CacheLayout layout;
  for (const Qwen3NextConfig::Layer& layer : config_.layers) {
    if (layer.recurrent) {
      layout.layers.push_back(RecurrentState{.key_heads = delta.key_heads,
                                             .value_heads = delta.value_heads,
                                             .key_dim = delta.key_dim,
                                             .value_dim = delta.value_dim,
                                             .conv_channels = delta.conv_channels(),
                                             .conv_width = delta.conv_width});
    } else {
      layout.layers.push_back(FullKv{config_.num_kv_heads, config_.head_dim});
    }
  }
  return layout;
}

int64_t Qwen3Next::prefill_alignment() const {
  constexpr int64_t kChunkTokens = 64;  // of ops/gated_delta
  const auto& layers = config_.layers;
  const bool any =
      std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.recurrent; });
  return any ? kChunkTokens : 1;
}

TensorView Qwen3Next::embed(StepContext& step) const {
  const LayerScope scope(step.stream, "embedding");
  const TensorView x = step.workspace.take(DType::kF32, {step.num_tokens(), config_.hidden_size});
  embedding(step.stream, embedding_.weight(), step.token_ids, 1, x);
  return x;
}

void Qwen3Next::place(Placement& placement) {
  place_shared(placement);
  for (int64_t i = 0; i < num_layers(); ++i) {
    placement.begin_layer();
    place_layer(i, placement);
  }
  placement.end_layers();
  if (mtp_) mtp_->place(placement);
}

void Qwen3Next::place_shared(Placement& placement) {
  placement.place(embedding_, head_, final_norm_, rotary_);
}

void Qwen3Next::place_layer(int64_t layer, Placement& placement) {
  layers_[layer].place(placement);
}

void Qwen3Next::rebind_layer(int64_t layer, const WeightMap& weights) {
  WeightBinder binder(weights);
  Qwen3NextLayer bound(config_, config_.layers[layer], binder, fmt::format("layers.{}.", layer));
  binder.finish();
  layers_[layer] = std::move(bound);
}

TensorView Qwen3Next::forward(StepContext& step) const {
  const TensorView x = step.layers != nullptr ? step.layers->x : embed(step);  // [tokens, hidden]
  if (step.observer != nullptr) step.observer->layer_output(-1, x);
  const Rotary::Tables tables = rotary_.tables(step);
  const int64_t end = step.end_layer(num_layers());
  const PassedNorm passed(step, config_.hidden_size);
  Qwen3NextLayer::Passing passing{.x = x, .next = nullptr, .passed = passed};
  for (int64_t i = step.first_layer(); i < end; ++i) {
    begin_layer(step, i);
    passing.next = i + 1 < end ? &layers_[i + 1] : nullptr;
    layers_[i].run(step, i, rotary_, tables, passing);
    end_layer(step, i);
    if (step.observer != nullptr) step.observer->layer_output(i, x);
  }
  return step.layers != nullptr ? TensorView() : logits(step, x);
}

TensorView Qwen3Next::logits(StepContext& step, const TensorView& x) const {
  const LayerScope scope(step.stream, "head");
  const TensorView rows = step.workspace.take(
      DType::kF32, {static_cast<int64_t>(step.logits_rows.size()), config_.hidden_size});
  if (step.wants_hidden) {
    step.hidden = final_norm_.run(step, x);
    gather_rows(step.stream, step.hidden, step.logits_rows, rows);
  } else {
    gather_rows(step.stream, x, step.logits_rows, rows);
    final_norm_.run_in_place(step, rows);
  }
  return head_.run(step, rows);
}

}  // namespace braid

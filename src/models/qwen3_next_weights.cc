#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "models/expert_stack.h"
#include "models/layer_binder.h"
#include "models/qwen3_next_layer.h"
#include "models/weight_rows.h"

namespace braid {
namespace {

// Rows of the groups that a joint projection interleaves by head: part `begin` to `begin + count`
// of each group of `stride` rows.
void append_part(std::vector<RowRange>& ranges, int64_t groups, int64_t stride, int64_t begin,
                 int64_t count) {
  for (int64_t group = 0; group < groups; ++group) {
    ranges.push_back({group * stride + begin, count});
  }
}

// A faulty joint tensor gives an empty part; the binder's list ends the load.
Linear select(const Linear& joint, const std::vector<RowRange>& ranges) {
  return joint.empty() ? Linear() : Linear(select_rows(joint.weight(), ranges), joint.name());
}

// in_proj_qkvz: per key head its q, its k, and v then z of its value heads.
void split_qkvz(const Linear& joint, const GatedDeltaNet::Dimensions& delta,
                GatedDeltaNet::Weights& weights) {
  const int64_t values = delta.value_width() / delta.key_heads;
  const int64_t stride = 2 * delta.key_dim + 2 * values;
  std::vector<RowRange> qkv, z;
  append_part(qkv, delta.key_heads, stride, 0, delta.key_dim);
  append_part(qkv, delta.key_heads, stride, delta.key_dim, delta.key_dim);
  append_part(qkv, delta.key_heads, stride, 2 * delta.key_dim, values);
  append_part(z, delta.key_heads, stride, 2 * delta.key_dim + values, values);
  weights.qkv = select(joint, qkv);
  weights.z = select(joint, z);
}

// in_proj_ba: per key head b then a of its value heads.
void split_ba(const Linear& joint, const GatedDeltaNet::Dimensions& delta,
              GatedDeltaNet::Weights& weights) {
  const int64_t ratio = delta.value_heads / delta.key_heads;
  std::vector<RowRange> b, a;
  append_part(b, delta.key_heads, 2 * ratio, 0, ratio);
  append_part(a, delta.key_heads, 2 * ratio, ratio, ratio);
  weights.b = select(joint, b);
  weights.a = select(joint, a);
}

}  // namespace

Qwen3NextLayer::Qwen3NextLayer(const Qwen3NextConfig& config, const Qwen3NextConfig::Layer& kind,
                               WeightBinder& binder, const std::string& prefix) {
  const int64_t hidden = config.hidden_size;
  LayerBinder bind(binder, prefix, {config.rms_norm_eps, config.storage.norm_offset}, info_);
  input_norm_ = bind.norm("input_layernorm", hidden);
  post_attention_norm_ = bind.norm("post_attention_layernorm", hidden);

  const GatedDeltaNet::Dimensions& delta = config.delta;
  if (kind.recurrent) {
    delta_net_ = bind_delta_net(config, bind);
    const std::string size = delta.key_dim == delta.value_dim
                                 ? fmt::format("{}", delta.key_dim)
                                 : fmt::format("{}/{}", delta.key_dim, delta.value_dim);
    info_.attention = fmt::format("gdn {}+{} heads {}, conv {}", delta.key_heads, delta.value_heads,
                                  size, delta.conv_width);
  } else {
    attention_ = bind_attention(config, bind);
    info_.attention = fmt::format("full {} x {}, gated", config.num_kv_heads, config.head_dim);
  }
  if (kind.sparse) {
    experts_ = bind_experts(config, bind);
    info_.feed_forward =
        fmt::format("moe {} of {} x {} + shared {}", config.top_k_experts, config.num_experts,
                    config.expert_width, config.shared_expert_width);
  } else {
    mlp_ = bind.gated_mlp("mlp", Activation::kSilu, config.mlp_width, hidden);
    info_.feed_forward = fmt::format("dense {}", config.mlp_width);
  }
}

// q_proj holds, head by head, the query's rows and those of its gate.
Qwen3NextLayer::Attention Qwen3NextLayer::bind_attention(const Qwen3NextConfig& config,
                                                         LayerBinder& bind) {
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_heads;
  const int64_t width = config.head_dim;
  const int64_t kv_rows = config.num_kv_heads * width;
  Attention attention{.num_heads = heads, .num_kv_heads = config.num_kv_heads, .head_dim = width};
  const Linear joint = bind.linear("self_attn.q_proj", 2 * heads * width, hidden);
  std::vector<RowRange> q, gate;
  append_part(q, heads, 2 * width, 0, width);
  append_part(gate, heads, 2 * width, width, width);
  attention.q = select(joint, q);
  attention.gate = select(joint, gate);
  attention.k = bind.linear("self_attn.k_proj", kv_rows, hidden);
  attention.v = bind.linear("self_attn.v_proj", kv_rows, hidden);
  attention.output = bind.linear("self_attn.o_proj", hidden, heads * width);
  attention.q_norm = bind.norm("self_attn.q_norm", width);
  attention.k_norm = bind.norm("self_attn.k_norm", width);
  attention.kv_scales = bind.kv_scales();
  return attention;
}

GatedDeltaNet Qwen3NextLayer::bind_delta_net(const Qwen3NextConfig& config, LayerBinder& bind) {
  const GatedDeltaNet::Dimensions& delta = config.delta;
  const Qwen3NextConfig::Storage& storage = config.storage;
  const int64_t hidden = config.hidden_size;
  const int64_t heads = delta.value_heads;
  const std::string block = "linear_attn.";
  GatedDeltaNet::Weights weights;

  // What is there decides; the family says what should be.
  const bool joint_qkvz = storage.joint_qkvz ? !bind.has(block + "in_proj_qkv.weight")
                                             : bind.has(block + "in_proj_qkvz.weight");
  if (joint_qkvz) {
    const int64_t rows = delta.conv_channels() + delta.value_width();
    split_qkvz(bind.linear(block + "in_proj_qkvz", rows, hidden), delta, weights);
  } else {
    weights.qkv = bind.linear(block + "in_proj_qkv", delta.conv_channels(), hidden);
    weights.z = bind.linear(block + "in_proj_z", delta.value_width(), hidden);
  }
  const bool joint_ba = storage.joint_ba ? !bind.has(block + "in_proj_b.weight")
                                         : bind.has(block + "in_proj_ba.weight");
  if (joint_ba) {
    split_ba(bind.linear(block + "in_proj_ba", 2 * heads, hidden), delta, weights);
  } else {
    weights.b = bind.linear(block + "in_proj_b", heads, hidden);
    weights.a = bind.linear(block + "in_proj_a", heads, hidden);
  }

  const int64_t channels = delta.conv_channels();
  weights.conv =
      bind.vector(block + "conv1d.weight", storage.unit_axes ? Shape{channels, 1, delta.conv_width}
                                                             : Shape{channels, delta.conv_width});
  if (bind.has(block + "decay_rate")) {
    weights.rate = bind.vector(block + "decay_rate", {heads});
  } else {
    weights.rate = bind.vector(block + "A_log", {heads});
    for (float& rate : weights.rate.view().span<float>()) rate = -std::exp(rate);
  }
  weights.dt_bias = bind.vector(block + "dt_bias", {heads});
  weights.norm_weight = bind.vector(block + "norm.weight", {delta.value_dim});
  weights.output = bind.linear(block + "out_proj", hidden, delta.value_width());
  return {delta, storage.value_heads, config.rms_norm_eps, std::move(weights)};
}

SharedExpertMoe Qwen3NextLayer::bind_experts(const Qwen3NextConfig& config, LayerBinder& bind) {
  const int64_t hidden = config.hidden_size;
  const int64_t experts = config.num_experts;
  const int64_t width = config.expert_width;
  const LayerBinder::Share active{config.top_k_experts, experts};
  MixtureOfExperts::Weights weights;
  weights.name = bind.prefix() + "mlp.experts";
  if (bind.has("mlp.experts.0.gate_proj.weight")) {
    weights.gate = bind_expert_stack(bind, "mlp.experts", "gate_proj", {width, hidden}, active);
    weights.up = bind_expert_stack(bind, "mlp.experts", "up_proj", {width, hidden}, active);
    weights.down = bind_expert_stack(bind, "mlp.experts", "down_proj", {hidden, width}, active);
  } else {
    if (bind.has("mlp.experts.gate_proj")) {
      weights.gate = bind.weight("mlp.experts.gate_proj", {experts, width, hidden}, active);
      weights.up = bind.weight("mlp.experts.up_proj", {experts, width, hidden}, active);
    } else {
      weights.gate_up =
          bind.weight("mlp.experts.gate_up_proj", {experts, 2 * width, hidden}, active);
    }
    weights.down = bind.weight("mlp.experts.down_proj", {experts, hidden, width}, active);
  }

  Linear router = bind.linear("mlp.gate", experts, hidden);
  const Shape gate_shape = config.storage.unit_axes ? Shape{1, hidden} : Shape{hidden};
  Weight shared_gate = bind.weight("mlp.shared_expert_gate.weight", gate_shape);
  shared_gate.shape = Shape{1, hidden};
  return {
      std::move(router),
      MixtureOfExperts(Activation::kSilu, std::move(weights), config.top_k_experts,
                       config.router_softmax),
      bind.gated_mlp("mlp.shared_expert", Activation::kSilu, config.shared_expert_width, hidden),
      Linear(std::move(shared_gate))};
}

}  // namespace braid

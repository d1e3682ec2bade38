#pragma once

#include <string>

#include "checkpoint/weight_map.h"
#include "layers/gated_mlp.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "models/model.h"

namespace braid {

// Binds the tensors of one layer, named below its prefix, and counts into `info` what they add to
// its row of `inspect`. Borrows binder and info.
class LayerBinder {
 public:
  struct Norms {
    float epsilon = 1e-6f;
    float offset = 0;  // added to each stored weight
  };

  struct Share {
    int64_t read;
    int64_t of;
  };

  LayerBinder(WeightBinder& binder, std::string prefix, Norms norms, LayerInfo& info)
      : binder_(binder), prefix_(std::move(prefix)), norms_(norms), info_(info) {}

  const std::string& prefix() const { return prefix_; }
  bool has(const std::string& name) const { return binder_.has(prefix_ + name); }
  void ignore(const std::string& name, std::string_view reason) {
    binder_.ignore(prefix_ + name, reason);
  }

  // "name.weight" of the family's usual norm.
  RmsNorm norm(const std::string& name, int64_t width) {
    return RmsNorm(vector(name + ".weight", {width}, norms_.offset), norms_.epsilon);
  }
  // A small tensor, with `offset` added to each element.
  Tensor vector(const std::string& name, const Shape& shape, float offset = 0) {
    info_.num_parameters += shape.num_elements();
    return binder_.f32(prefix_ + name, shape, offset);
  }
  float scalar(const std::string& name) {
    info_.num_parameters += 1;
    return binder_.scalar(prefix_ + name);
  }
  // Of int8 keys and values, if the checkpoint has them.
  KvScales kv_scales() {
    const std::string key = "self_attn.k_scale", value = "self_attn.v_scale";
    if (!has(key) && !has(value)) return {};
    return {binder_.scale(prefix_ + key, kSmallestKvScale, kLargestKvScale),
            binder_.scale(prefix_ + value, kSmallestKvScale, kLargestKvScale)};
  }
  // A token reads `read` of each `of` matrices: the active ones of all experts.
  Weight weight(const std::string& name, const Shape& shape, Share share = {1, 1}) {
    Weight weight = binder_.weight(prefix_ + name, shape);
    info_.num_parameters += shape.num_elements();
    if (!weight.empty()) {
      count_elements(name, shape, share);
      info_.bytes_read_per_token += weight.size_bytes() / share.of * share.read;
    }
    return weight;
  }
  // "name.weight"
  Linear linear(const std::string& name, int64_t out, int64_t in) {
    return Linear(weight(name + ".weight", {out, in}), prefix_ + name + ".weight");
  }
  // gate_proj, up_proj and down_proj below `name`.
  GatedMlp gated_mlp(const std::string& name, Activation activation, int64_t width,
                     int64_t hidden) {
    Linear gate = linear(name + ".gate_proj", width, hidden);
    Linear up = linear(name + ".up_proj", width, hidden);
    return {activation, std::move(gate), std::move(up), linear(name + ".down_proj", hidden, width)};
  }

 private:
  void count_elements(const std::string& name, const Shape& shape, Share share) {
    if (shape.rank() < 2) return;
    // A stack [matrices, rows, cols], or one of so many matrices.
    const double active = shape.rank() == 3
                              ? static_cast<double>(share.read)
                              : static_cast<double>(share.read) / static_cast<double>(share.of);
    info_.output_elements += active * static_cast<double>(shape.dim(-2));
    const std::string matrix = name.substr(0, name.rfind('.'));
    const std::string parent = matrix.substr(0, matrix.rfind('.'));
    const bool ends_block = matrix.find("o_proj") != matrix.npos ||
                            matrix.find("out_proj") != matrix.npos ||
                            matrix.find("down_proj") != matrix.npos;
    const bool shares_input = !ends_block && parent == last_parent_ && shape.dim(-1) == last_cols_;
    if (!shares_input) info_.input_elements += active * static_cast<double>(shape.dim(-1));
    last_parent_ = parent;
    last_cols_ = shape.dim(-1);
  }

  WeightBinder& binder_;
  std::string prefix_;
  Norms norms_;
  LayerInfo& info_;
  std::string last_parent_;  // of the matrix bound last
  int64_t last_cols_ = 0;
};

}  // namespace braid

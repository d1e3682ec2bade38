#include "convert/gguf_layout.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "checkpoint/printable.h"
#include "convert/gguf_family.h"
#include "models/gemma3_config.h"
#include "models/gemma4_config.h"
#include "models/gemma_names.h"
#include "models/qwen3_next_config.h"
#include "models/qwen_names.h"
#include "models/tensor_names.h"

namespace braid {
namespace {

// Turns the frequencies of pairs that stay into ones that hardly turn.
constexpr float kStoppedPair = 1e30f;

bool is_tower(std::string_view name) {
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return std::ranges::any_of(gemma_tower_prefixes(), begins) ||
         std::ranges::any_of(qwen_tower_prefixes(), begins);
}

// "layers.3.mlp.experts.7.up_proj.weight" as ("layers.3.mlp.experts.up_proj", 7).
struct SingleExpert {
  std::string stack;
  int64_t expert = 0;
};
std::optional<SingleExpert> single_expert(std::string_view name) {
  const auto one = expert_name(name);
  constexpr std::string_view kEnd = ".weight";
  if (!one || !one->rest.starts_with('.') || !one->rest.ends_with(kEnd)) return std::nullopt;
  const std::string_view matrix = one->rest.substr(1, one->rest.size() - 1 - kEnd.size());
  return SingleExpert{std::string(one->stem) + std::string(matrix), one->expert};
}

std::vector<int64_t> range(int64_t begin, int64_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) rows[i] = begin + i;
  return rows;
}

void append_range(std::vector<int64_t>& rows, int64_t begin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) rows.push_back(begin + i);
}

Shape with_rows(const Shape& shape, int64_t rows) {
  std::vector<int64_t> sizes(shape.sizes().begin(), shape.sizes().end());
  sizes[sizes.size() >= 2 ? sizes.size() - 2 : 0] = rows;
  return Shape(std::span<const int64_t>(sizes));
}

class LayoutBuilder {
 public:
  explicit LayoutBuilder(const ModelFiles& files) : files_(files), family_(gguf_family(files)) {
    if (family_.kind == GgufFamily::Kind::kGemma3) {
      gemma_norm_offset_ = Gemma3Config::from_json(files.config()).norm_offset;
    }
    if (family_.kind == GgufFamily::Kind::kQwen) {
      qwen_ = Qwen3NextConfig::from_json(files.config());
    }
  }

  GgufLayout build() {
    layout_.architecture = family_.architecture;
    for (const auto& [name, tensor] : files_.weights().tensors()) {
      if (const auto single = single_expert(name)) {
        stacks_[single->stack][single->expert] = name;
      } else {
        add_tensor(name, tensor.weight.shape);
      }
    }
    for (const auto& [name, experts] : stacks_) add_stack(name, experts);
    if (family_.kind == GgufFamily::Kind::kGemma4) add_rope_factors();
    std::stable_sort(layout_.tensors.begin(), layout_.tensors.end(),
                     [](const GgufTensor& a, const GgufTensor& b) {
                       return block_of(a.name) < block_of(b.name);
                     });
    return std::move(layout_);
  }

 private:
  // Tensors of no block come first.
  static int64_t block_of(std::string_view name) {
    const auto block = parse_block_tensor(name);
    return block ? block->block : -1;
  }

  std::string gguf_name(std::string_view canonical) const {
    return qwen_ ? qwen_gguf_name(canonical, static_cast<int64_t>(qwen_->layers.size()))
                 : gemma_gguf_name(canonical);
  }

  void add_tensor(const std::string& name, const Shape& shape) {
    if (is_tower(name)) {
      layout_.left_out.push_back({name, "text only"});
      return;
    }
    if (name == "lm_head.weight" && family_.tied_head) {
      layout_.left_out.push_back({name, "the head is tied to embed_tokens"});
      return;
    }
    if (qwen_ && add_qwen_tensor(name, shape)) return;
    GgufTensor tensor{.name = required_name(name), .shape = shape, .sources = {name}};
    if (is_norm_less_one(name)) tensor.change = GgufTensor::Change::kPlusOne;
    add(std::move(tensor));
  }

  std::string required_name(const std::string& name) const {
    std::string result = gguf_name(name);
    if (result.empty()) {
      throw Error("{}: tensor {}: GGUF files of architecture {} have no place for it",
                  files_.origin(), printable(name), family_.architecture);
    }
    return result;
  }

  void add(GgufTensor tensor) {
    if (tensor.shape.rank() == 0) tensor.shape = Shape{1};
    tensor.always_f32 = tensor.always_f32 || tensor.shape.rank() == 1 ||
                        tensor.name.ends_with("ffn_gate_inp.weight");
    layout_.tensors.push_back(std::move(tensor));
  }

  bool is_norm_less_one(std::string_view name) const {
    if (qwen_) {
      return qwen_->storage.norm_offset != 0 && name.find("norm") != name.npos &&
             !name.ends_with("linear_attn.norm.weight");
    }
    return gemma_norm_offset_ != 0 && name.ends_with("norm.weight");
  }

  void add_stack(const std::string& name, const std::map<int64_t, std::string>& experts) {
    GgufTensor tensor{.name = required_name(name), .shape = {}, .sources = {}};
    const Shape& one = files_.weights().find(experts.begin()->second)->weight.shape;
    for (const auto& [expert, source] : experts) {
      if (expert != static_cast<int64_t>(tensor.sources.size()) ||
          files_.weights().find(source)->weight.shape != one) {
        throw Error("{}: {}: an expert before it is missing or has another shape", files_.origin(),
                    printable(source));
      }
      tensor.sources.push_back(source);
    }
    tensor.shape = Shape{static_cast<int64_t>(experts.size()), one.dim(0), one.dim(1)};
    add(std::move(tensor));
  }

  // What is stored in another order or form than by its name alone.
  bool add_qwen_tensor(const std::string& name, const Shape& shape) {
    const GatedDeltaNet::Dimensions& delta = qwen_->delta;
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    const bool tiled = family_.architecture != "qwen3next";
    GgufTensor tensor{.name = "", .shape = shape, .sources = {name}};
    if (ends("linear_attn.in_proj_qkvz.weight")) {
      split_qkvz(name, shape);
      return true;
    }
    if (ends("experts.gate_up_proj")) {
      split_gate_up(name, shape);
      return true;
    }
    if (ends("linear_attn.A_log")) {
      const std::string rate = name.substr(0, name.size() - 5) + "decay_rate";
      tensor.name = required_name(rate);
      tensor.change = GgufTensor::Change::kMinusExponential;
      if (tiled) tensor.rows = tiled_heads(1);
    } else if (ends("linear_attn.dt_bias")) {
      tensor.name = required_name(name);
      if (tiled) tensor.rows = tiled_heads(1);
    } else if (ends("conv1d.weight")) {
      tensor.name = required_name(name);
      tensor.shape = Shape{shape.dim(0), shape.dim(-1)};
      tensor.always_f32 = true;
      if (tiled) tensor.rows = keys_then_tiled(0);
    } else if (ends("shared_expert_gate.weight")) {
      tensor.name = required_name(name);
      tensor.shape = Shape{shape.num_elements()};
    } else if (ends("linear_attn.in_proj_ba.weight") && tiled) {
      throw Error("{}: tensor {}: joint projections have no place in files of architecture {}",
                  files_.origin(), printable(name), family_.architecture);
    } else if (tiled && ends("linear_attn.in_proj_qkv.weight")) {
      tensor.name = required_name(name);
      tensor.rows = keys_then_tiled(0);
    } else if (tiled && ends("linear_attn.in_proj_z.weight")) {
      tensor.name = required_name(name);
      tensor.rows = tiled_heads(delta.value_dim);
    } else if (tiled && (ends("in_proj_a.weight") || ends("in_proj_b.weight"))) {
      tensor.name = required_name(name);
      tensor.rows = tiled_heads(1);
    } else if (tiled && ends("linear_attn.out_proj.weight")) {
      tensor.name = required_name(name);
      tensor.column_run = delta.value_dim;
      tensor.column_runs = tiled_heads(1);
    } else {
      return false;
    }
    add(std::move(tensor));
    return true;
  }

  // Value heads grouped by key head become tiled: of key head k the i-th goes to i · keys + k.
  std::vector<int64_t> tiled_heads(int64_t width) const {
    const int64_t keys = qwen_->delta.key_heads, ratio = qwen_->delta.value_heads / keys;
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < ratio; ++i) {
      for (int64_t key = 0; key < keys; ++key) append_range(rows, (key * ratio + i) * width, width);
    }
    return rows;
  }

  std::vector<int64_t> keys_then_tiled(int64_t begin) const {
    const int64_t key_rows = 2 * qwen_->delta.key_heads * qwen_->delta.key_dim;
    std::vector<int64_t> rows = range(begin, key_rows);
    for (const int64_t row : tiled_heads(qwen_->delta.value_dim)) {
      rows.push_back(begin + key_rows + row);
    }
    return rows;
  }

  // Per key head its q, its k, then v and z of its value heads.
  void split_qkvz(const std::string& name, const Shape& shape) {
    const GatedDeltaNet::Dimensions& delta = qwen_->delta;
    const int64_t values = delta.value_heads / delta.key_heads * delta.value_dim;
    const int64_t stride = 2 * delta.key_dim + 2 * values;
    std::vector<int64_t> qkv, z;
    const std::array<std::pair<int64_t, int64_t>, 3> parts = {std::pair{int64_t{0}, delta.key_dim},
                                                              {delta.key_dim, delta.key_dim},
                                                              {2 * delta.key_dim, values}};
    for (const auto& [begin, count] : parts) {
      for (int64_t key = 0; key < delta.key_heads; ++key) {
        append_range(qkv, key * stride + begin, count);
      }
    }
    for (int64_t key = 0; key < delta.key_heads; ++key) {
      append_range(z, key * stride + 2 * delta.key_dim + values, values);
    }
    if (static_cast<int64_t>(qkv.size() + z.size()) != shape.dim(0)) {
      throw Error("{}: tensor {}: {} rows do not fit the heads of config.json", files_.origin(),
                  printable(name), shape.dim(0));
    }
    const std::string stem = name.substr(0, name.size() - std::string_view("qkvz.weight").size());
    add_rows(required_name(stem + "qkv.weight"), name, shape, std::move(qkv));
    add_rows(required_name(stem + "z.weight"), name, shape, std::move(z));
  }

  // Stacks of [gate; up].
  void split_gate_up(const std::string& name, const Shape& shape) {
    const std::string stem = name.substr(0, name.size() - std::string_view("gate_up_proj").size());
    const int64_t width = shape.dim(1) / 2;
    for (const int64_t part : {0, 1}) {
      std::vector<int64_t> rows;
      for (int64_t expert = 0; expert < shape.dim(0); ++expert) {
        append_range(rows, (2 * expert + part) * width, width);
      }
      GgufTensor tensor{.name = required_name(stem + (part == 0 ? "gate_proj" : "up_proj")),
                        .shape = with_rows(shape, width),
                        .sources = {name},
                        .rows = std::move(rows)};
      add(std::move(tensor));
    }
  }

  void add_rows(std::string gguf, const std::string& source, const Shape& shape,
                std::vector<int64_t> rows) {
    const auto count = static_cast<int64_t>(rows.size());
    add({.name = std::move(gguf),
         .shape = with_rows(shape, count),
         .sources = {source},
         .rows = std::move(rows)});
  }

  void add_rope_factors() {
    const Gemma4Config config = Gemma4Config::from_json(files_.config());
    int64_t head_dim = 2;
    for (const Gemma4Config::Layer& layer : config.layers) {
      if (!layer.sliding) head_dim = layer.head_dim;
    }
    const RopeConfig& rope = config.full_rope;
    const auto turning = static_cast<int64_t>(rope.frequencies(head_dim).size());
    std::vector<float> values(static_cast<size_t>(head_dim / 2), kStoppedPair);
    for (int64_t i = 0; i < turning; ++i) {
      values[i] = rope.type == RopeConfig::Type::kDefault ? 1.0f : static_cast<float>(rope.factor);
    }
    add({.name = "rope_freqs.weight", .shape = Shape{head_dim / 2}, .values = std::move(values)});
  }

  const ModelFiles& files_;
  GgufFamily family_;
  float gemma_norm_offset_ = 0;
  std::optional<Qwen3NextConfig> qwen_;
  std::map<std::string, std::map<int64_t, std::string>> stacks_;
  GgufLayout layout_;
};

GgufLayout layout_as_it_is(const ModelFiles& files) {
  GgufLayout layout{.architecture = files.model_type()};
  for (const auto& [name, tensor] : files.weights().tensors()) {
    const Shape& shape = tensor.weight.shape;
    layout.tensors.push_back({.name = tensor.file_name.empty() ? name : tensor.file_name,
                              .shape = shape,
                              .sources = {name},
                              .always_f32 = shape.rank() == 1 ||
                                            tensor.file_name.ends_with("ffn_gate_inp.weight") ||
                                            tensor.file_name.ends_with("ssm_conv1d.weight")});
  }
  return layout;
}

}  // namespace

GgufLayout gguf_layout(const ModelFiles& files) {
  return files.is_gguf() ? layout_as_it_is(files) : LayoutBuilder(files).build();
}

}  // namespace braid

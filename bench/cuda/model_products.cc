#include "model_products.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "checkpoint/config_reader.h"
#include "models/gemma4_config.h"
#include "models/qwen3_next_config.h"

namespace braid::cuda {
namespace {

class ProductList {
 public:
  void matrix(std::string what, int64_t rows, int64_t cols, bool kept = false) {
    add({.what = std::move(what), .rows = rows, .cols = cols, .kept = kept});
  }
  void head(int64_t vocabulary, int64_t hidden) {
    add({.what = "head", .rows = vocabulary, .cols = hidden, .kept = true, .few_tokens = true});
  }
  void gated(const std::string& what, int64_t width, int64_t hidden) {
    matrix(what + ": gate and up", 2 * width, hidden);
    matrix(what + ": down", hidden, width);
    add({.what = what, .kind = ProductKind::kGated, .rows = width, .cols = hidden});
  }
  void experts(int64_t experts, int64_t picks, int64_t width, int64_t hidden) {
    const auto expert = [&](std::string what, ProductKind kind, int64_t rows, int64_t cols) {
      add({.what = std::move(what),
           .kind = kind,
           .experts = experts,
           .picks = picks,
           .rows = rows,
           .cols = cols});
    };
    matrix("router", experts, hidden, true);
    expert("experts: gate and up", ProductKind::kExperts, 2 * width, hidden);
    expert("experts: down", ProductKind::kExperts, hidden, width);
    expert("experts", ProductKind::kGatedExperts, width, hidden);
  }
  std::vector<ModelProduct> take() {
    std::stable_partition(products_.begin(), products_.end(), [](const ModelProduct& p) {
      return p.kind == ProductKind::kMatrix || p.kind == ProductKind::kExperts;
    });
    return std::move(products_);
  }

 private:
  void add(ModelProduct product) {
    const auto same = [&](const ModelProduct& p) {
      return p.kind == product.kind && p.experts == product.experts && p.rows == product.rows &&
             p.cols == product.cols && p.kept == product.kept;
    };
    if (std::any_of(products_.begin(), products_.end(), same)) return;
    products_.push_back(std::move(product));
  }

  std::vector<ModelProduct> products_;
};

std::vector<ModelProduct> gemma_products(const Gemma4Config& config) {
  ProductList list;
  const int64_t hidden = config.hidden_size;
  for (const Gemma4Config::Layer& layer : config.layers) {
    const int64_t queries = config.num_heads * layer.head_dim;
    const int64_t keys = layer.kv_donor ? 0 : layer.num_kv_heads * layer.head_dim;
    const std::string where = layer.sliding ? "window" : "full";
    list.matrix(where + ": queries, keys, values",
                queries + (layer.values_from_keys ? 1 : 2) * keys, hidden);
    list.matrix(where + ": output", hidden, queries);
    list.gated("block", layer.mlp_width, hidden);
    if (config.per_layer_width > 0) {
      list.matrix("gate of embeddings", config.per_layer_width, hidden);
      list.matrix("projection of embeddings", hidden, config.per_layer_width);
    }
  }
  if (config.num_experts > 0) {
    list.experts(config.num_experts, config.top_k_experts, config.expert_width, hidden);
  }
  list.head(config.vocab_size, hidden);
  return list.take();
}

std::vector<ModelProduct> qwen_products(const Qwen3NextConfig& config) {
  ProductList list;
  const int64_t hidden = config.hidden_size;
  const auto& delta = config.delta;
  for (const Qwen3NextConfig::Layer& layer : config.layers) {
    if (layer.recurrent) {
      list.matrix("delta: queries, keys, values, gates",
                  delta.conv_channels() + delta.value_width(), hidden);
      list.matrix("delta: decays", 2 * delta.value_heads, hidden, true);
      list.matrix("delta: output", hidden, delta.value_width());
    } else {
      const int64_t queries = config.num_heads * config.head_dim;
      list.matrix("queries, gates, keys, values",
                  2 * queries + 2 * config.num_kv_heads * config.head_dim, hidden);
      list.matrix("output", hidden, queries);
    }
    if (!layer.sparse) list.gated("block", config.mlp_width, hidden);
  }
  if (config.num_experts > 0) {
    list.gated("shared expert", config.shared_expert_width, hidden);
    list.experts(config.num_experts, config.top_k_experts, config.expert_width, hidden);
  }
  list.head(config.vocab_size, hidden);
  return list.take();
}

}  // namespace

std::vector<ModelProduct> model_products(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Error("{}: cannot be read", path.string());
  const ConfigReader config(text, path.string());
  const std::string type = config.string("model_type");
  if (type.starts_with("gemma4")) return gemma_products(Gemma4Config::from_json(config));
  if (type.starts_with("qwen3")) return qwen_products(Qwen3NextConfig::from_json(config));
  config.fail("model_type", "a model of Gemma 4 or Qwen3-Next is expected");
}

}  // namespace braid::cuda

#include "models/gemma_config.h"

#include <fmt/format.h>

namespace braid {

void refuse_unimplemented_gemma(const ConfigReader& text) {
  if (text.find_boolean("attention_bias").value_or(false)) {
    text.fail("attention_bias", "biases are not implemented");
  }
  const std::string activation =
      text.find_string("hidden_activation").value_or("gelu_pytorch_tanh");
  if (activation != "gelu_pytorch_tanh") {
    text.fail("hidden_activation", "'" + activation + "' is not implemented (gelu_pytorch_tanh)");
  }
}

std::optional<std::vector<bool>> find_sliding_layers(const ConfigReader& text, int64_t num_layers) {
  const auto types = text.find_strings("layer_types");
  if (!types) return std::nullopt;
  if (static_cast<int64_t>(types->size()) != num_layers) {
    text.fail("layer_types",
              fmt::format("has {} entries for {} layers", types->size(), num_layers));
  }
  std::vector<bool> sliding(num_layers);
  for (int64_t i = 0; i < num_layers; ++i) {
    const std::string& type = (*types)[i];
    if (type != "sliding_attention" && type != "full_attention") {
      text.fail("layer_types", fmt::format("entry {}: unknown type '{}'", i, type));
    }
    sliding[i] = type == "sliding_attention";
  }
  return sliding;
}

}  // namespace braid

#include "models/tensor_names.h"

#include <charconv>

namespace braid {

std::string translate(std::string_view name, std::span<const NamePair> pairs) {
  for (const auto& [gguf, canonical] : pairs) {
    if (name == gguf) return std::string(canonical);
  }
  return {};
}

std::string translate_back(std::string_view name, std::span<const NamePair> pairs) {
  for (const auto& [gguf, canonical] : pairs) {
    if (name == canonical) return std::string(gguf);
  }
  return {};
}

namespace {

std::optional<BlockTensor> parse_numbered(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  BlockTensor tensor;
  const auto [end, error] = std::from_chars(name.begin(), name.end(), tensor.block);
  if (error != std::errc() || tensor.block < 0 || end == name.end() || *end != '.') {
    return std::nullopt;
  }
  tensor.name = name.substr(static_cast<size_t>(end - name.begin()) + 1);
  return tensor;
}

}  // namespace

std::optional<BlockTensor> parse_block_tensor(std::string_view name) {
  return parse_numbered(name, "blk.");
}

std::optional<BlockTensor> parse_layer_tensor(std::string_view name) {
  return parse_numbered(name, "layers.");
}

void strip_decoder_prefixes(WeightMap& weights) {
  weights.rename([](std::string_view name) -> std::string {
    for (std::string_view prefix :
         {"model.language_model.", "language_model.model.", "model.", "language_model."}) {
      if (name.starts_with(prefix)) return std::string(name.substr(prefix.size()));
    }
    return {};
  });
}

std::optional<ExpertName> expert_name(std::string_view tensor) {
  constexpr std::string_view kMark = ".experts.";
  const size_t at = tensor.find(kMark);
  if (at == tensor.npos) return std::nullopt;
  ExpertName result{.stem = tensor.substr(0, at + kMark.size()),
                    .rest = tensor.substr(at + kMark.size())};
  const char* const end = result.rest.data() + result.rest.size();
  const auto [rest, error] = std::from_chars(result.rest.data(), end, result.expert);
  if (error != std::errc() || result.expert < 0) return std::nullopt;
  result.rest.remove_prefix(static_cast<size_t>(rest - result.rest.data()));
  return result;
}

}  // namespace braid

#include "checkpoint/kv_cache_scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

struct Ending {
  std::string_view found, canonical;
};
constexpr std::array kScales = {
    Ending{".k_scale", ".k_scale"},
    Ending{".v_scale", ".v_scale"},
    Ending{".k_proj.output_scale", ".k_scale"},
    Ending{".v_proj.output_scale", ".v_scale"},
};
constexpr std::array kZeros = {
    Ending{".k_zero_point", {}},
    Ending{".v_zero_point", {}},
    Ending{".k_proj.output_zero_point", {}},
    Ending{".v_proj.output_zero_point", {}},
};

const Ending* ending_of(std::string_view name, std::span<const Ending> endings) {
  for (const Ending& ending : endings) {
    if (name.ends_with(ending.found)) return &ending;
  }
  return nullptr;
}

std::vector<std::string> names_with(const WeightMap& weights, std::span<const Ending> endings) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (ending_of(name, endings) != nullptr) names.push_back(name);
  }
  return names;
}

bool is_zero(const StoredTensor& tensor) {
  const std::span bytes(tensor.weight.data, static_cast<size_t>(tensor.stored_bytes));
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

void remove_all(WeightMap& weights, const std::vector<std::string>& names) {
  for (const std::string& name : names) weights.remove(name);
}

}  // namespace

KvCacheScheme KvCacheScheme::read(const ConfigReader& quantization) {
  const auto scheme = quantization.find_object("kv_cache_scheme");
  if (!scheme) return {};
  const auto other = [](std::string_view field, std::string_view value) {
    return KvCacheScheme{Kind::kOther, fmt::format("{} {}", field, printable(value))};
  };
  const std::string type = scheme->find_string("type").value_or("int");
  if (type != "int") return other("type", type);
  const int64_t bits = scheme->find_integer("num_bits").value_or(8);
  if (bits != 8) return other("num_bits", std::to_string(bits));
  if (!scheme->find_boolean("symmetric").value_or(true)) return other("symmetric", "false");
  if (scheme->is_string("dynamic")) return other("dynamic", scheme->string("dynamic"));
  if (scheme->find_boolean("dynamic").value_or(false)) return {Kind::kDynamicInt8, {}};
  const std::string strategy = scheme->find_string("strategy").value_or("tensor");
  if (strategy != "tensor") return other("strategy", strategy);
  return {Kind::kStaticInt8, {}};
}

void settle_kv_scales(WeightMap& weights, const KvCacheScheme& scheme) {
  const std::vector<std::string> scales = names_with(weights, kScales);
  const std::vector<std::string> zeros = names_with(weights, kZeros);
  if (scheme.kind != KvCacheScheme::Kind::kStaticInt8) {
    remove_all(weights, scales);
    remove_all(weights, zeros);
    const std::string why =
        scheme.kind == KvCacheScheme::Kind::kNone
            ? "quantization_config has no kv_cache_scheme that says what they scale"
        : scheme.kind == KvCacheScheme::Kind::kDynamicInt8
            ? "quantization_config.kv_cache_scheme is dynamic"
            : fmt::format(
                  "quantization_config.kv_cache_scheme has {}, of which braid has none "
                  "(static: type int, num_bits 8, symmetric, strategy tensor)",
                  scheme.other);
    if (!scales.empty()) {
      spdlog::warn("{}: {} scales of a quantised KV cache are not used: {}", weights.origin(),
                   scales.size(), why);
    } else if (scheme.kind == KvCacheScheme::Kind::kOther) {
      spdlog::warn("{}: keys and values are stored as --kv says: {}", weights.origin(), why);
    }
    return;
  }
  if (scales.empty()) {
    throw Error(
        "{}: quantization_config.kv_cache_scheme is static (int, 8 bits), but the files have no "
        "scales for it (….self_attn.k_scale and v_scale)",
        weights.origin());
  }
  for (const std::string& name : zeros) {
    const StoredTensor& tensor = *weights.find(name);
    if (!is_zero(tensor)) {
      throw Error(
          "{}: tensor {}: zero points of keys and values are not supported (symmetric "
          "scales are)",
          tensor.file, printable(name));
    }
  }
  remove_all(weights, zeros);
  weights.rename([](std::string_view name) -> std::string {
    const Ending* ending = ending_of(name, kScales);
    if (ending == nullptr || ending->found == ending->canonical) return {};
    return std::string(name.substr(0, name.size() - ending->found.size())) +
           std::string(ending->canonical);
  });
}

}  // namespace braid

#include "quantize/quantization_entry.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "quant/group_format.h"
#include "quantize/quantized_parts.h"

namespace braid {
namespace {

using nlohmann::ordered_json;

std::string module_of(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

// The modules of a tensor, as the file names them.
std::vector<std::string> modules_of(const TensorPlan& plan, bool split_experts) {
  if (plan.shape.rank() == 3 && !split_experts) return {plan.file_name};
  std::vector<std::string> names;
  for (const SingleMatrix& matrix : single_matrices(plan)) names.push_back(module_of(matrix.name));
  return names;
}

bool is_unquantised_module(const TensorPlan& plan) {
  return !plan.quantised() && plan.shape.rank() == 2 && plan.file_name.ends_with(".weight") &&
         plan.kind != ModuleKind::kNorm && plan.kind != ModuleKind::kEmbedding;
}

// "model.layers.3.mlp.up_proj" -> "re:.*\.layers\.\d+\.mlp\.up_proj$"
std::string pattern_of(const std::string& module, const std::string& start) {
  std::string pattern = start;
  for (size_t i = 0; i < module.size();) {
    if (module[i] == '.') {
      pattern += "\\.";
      size_t end = ++i;
      while (end < module.size() && module[end] >= '0' && module[end] <= '9') ++end;
      if (end > i && (end == module.size() || module[end] == '.')) {
        pattern += "\\d+";
        i = end;
      }
    } else {
      pattern += module[i++];
    }
  }
  return pattern + "$";
}

// Modules by what they have in common; a pattern stands for all modules it covers where that is so.
template <typename Key>
std::map<Key, std::vector<std::string>> targets_by(
    const std::map<Key, std::vector<std::string>>& modules, const std::string& start) {
  std::map<std::string, std::set<Key>> keys_of;
  for (const auto& [key, names] : modules) {
    for (const std::string& name : names) keys_of[pattern_of(name, start)].insert(key);
  }
  std::map<Key, std::vector<std::string>> targets;
  for (const auto& [key, names] : modules) {
    std::set<std::string> unique;
    for (const std::string& name : names) {
      const std::string pattern = pattern_of(name, start);
      unique.insert(keys_of[pattern].size() == 1 ? pattern : name);
    }
    targets[key].assign(unique.begin(), unique.end());
  }
  return targets;
}

// How a matrix is stored, as far as a config tells.
struct Storage {
  int bits = 4;
  int64_t group = 0;  // 0: a row
  bool symmetric = true;
  auto operator<=>(const Storage&) const = default;
};
Storage storage_of(const TensorPlan& plan) {
  const RoundingGrid grid = grid_of(plan);
  if (plan.format->id == FormatId::kW8C) return {.bits = 8};
  return {.bits = 4,
          .group = plan.per_row ? 0 : grid.group,
          .symmetric = grid.zero == RoundingGrid::Zero::kMiddle};
}

ordered_json scheme_of(const Storage& storage, const std::vector<std::string>& targets) {
  ordered_json weights = {{"num_bits", storage.bits},
                          {"type", "int"},
                          {"symmetric", storage.symmetric},
                          {"strategy", storage.group > 0 ? "group" : "channel"},
                          {"group_size", nullptr},
                          {"dynamic", false},
                          {"observer", "minmax"}};
  if (storage.group > 0) weights["group_size"] = storage.group;
  ordered_json scheme = {{"targets", targets},
                         {"weights", std::move(weights)},
                         {"input_activations", nullptr},
                         {"output_activations", nullptr},
                         {"format", storage.bits == 8 ? "int-quantized" : "pack-quantized"}};
  if (storage.bits == 8) {
    scheme["input_activations"] = {{"num_bits", 8},       {"type", "int"},   {"symmetric", true},
                                   {"strategy", "token"}, {"dynamic", true}, {"observer", nullptr}};
  }
  return scheme;
}

// "token" is a scale for each token of a head: keys and values are [heads, tokens, head_dim] there.
ordered_json kv_cache_scheme(KvRecipe kv) {
  if (kv == KvRecipe::kUnspecified) return nullptr;
  const bool dynamic = kv == KvRecipe::kInt8;
  ordered_json scheme = {{"num_bits", 8},         {"type", "int"},
                         {"symmetric", true},     {"strategy", dynamic ? "token" : "tensor"},
                         {"group_size", nullptr}, {"dynamic", dynamic},
                         {"observer", nullptr}};
  if (!dynamic) scheme["observer"] = "minmax";
  return scheme;
}

std::string finish(ordered_json config, ordered_json entry) {
  config["quantization_config"] = std::move(entry);
  return config.dump(2) + "\n";
}

}  // namespace

std::string with_compressed_tensors_entry(const std::string& config_json,
                                          const std::vector<TensorPlan>& plans, bool split_experts,
                                          KvRecipe kv) {
  std::map<Storage, std::vector<std::string>> modules;
  std::vector<std::string> ignored;
  bool table = false, head = false;
  for (const TensorPlan& plan : plans) {
    if (plan.kind == ModuleKind::kHead) head = true;
    if (plan.quantised()) {
      std::vector<std::string>& names = modules[storage_of(plan)];
      for (std::string& name : modules_of(plan, split_experts)) names.push_back(std::move(name));
      table = table || plan.kind == ModuleKind::kEmbedding;
    } else if (is_unquantised_module(plan)) {
      ignored.push_back(module_of(plan.file_name));
    }
  }
  if (!head && !table) ignored.push_back("lm_head");
  ordered_json groups = ordered_json::object();
  const auto targets = targets_by(modules, "re:.*");
  for (const auto& [storage, names] : targets) {
    const std::string name = "group_" + std::to_string(groups.size());
    const bool all = targets.size() == 1 && !table;
    groups[name] = scheme_of(storage, all ? std::vector<std::string>{"Linear"} : names);
  }
  std::string format = groups.empty() ? "dense" : groups.begin()->at("format");
  if (groups.empty()) ignored.clear();
  for (const auto& group : groups) {
    if (group["format"] != format) format = "mixed-precision";
  }
  ordered_json entry = {{"quant_method", "compressed-tensors"},
                        {"format", format},
                        {"quantization_status", "compressed"},
                        {"config_groups", std::move(groups)},
                        {"ignore", ignored},
                        {"kv_cache_scheme", kv_cache_scheme(kv)}};
  return finish(ordered_json::parse(config_json), std::move(entry));
}

std::string with_gptq_entry(const std::string& config_json, const std::vector<TensorPlan>& plans) {
  std::map<Storage, std::vector<std::string>> modules;
  ordered_json dynamic = ordered_json::object();
  bool head = false;
  for (const TensorPlan& plan : plans) {
    if (plan.quantised()) {
      std::vector<std::string>& names = modules[storage_of(plan)];
      for (std::string& name : modules_of(plan, true)) names.push_back(std::move(name));
      head = head || plan.kind == ModuleKind::kHead;
    } else if (is_unquantised_module(plan)) {
      dynamic[pattern_of(module_of(plan.file_name), "-:.*")] = ordered_json::object();
    }
  }
  // What most modules have is told once.
  Storage usual = modules.begin()->first;
  for (const auto& [storage, names] : modules) {
    if (names.size() > modules[usual].size()) usual = storage;
  }
  for (const auto& [storage, targets] : targets_by(modules, "+:.*")) {
    if (storage == usual) continue;
    for (const std::string& target : targets) {
      const std::string rule = target.starts_with("+:") ? target : pattern_of(target, "+:.*");
      dynamic[rule] = {{"bits", 4},
                       {"group_size", storage.group > 0 ? storage.group : -1},
                       {"sym", storage.symmetric}};
    }
  }
  ordered_json entry = {{"quant_method", "gptq"},
                        {"bits", 4},
                        {"group_size", usual.group > 0 ? usual.group : -1},
                        {"sym", usual.symmetric},
                        {"desc_act", false},
                        {"static_groups", true},
                        {"checkpoint_format", "gptq"},
                        {"pack_dtype", "int32"},
                        {"lm_head", head},
                        {"dynamic", std::move(dynamic)}};
  return finish(ordered_json::parse(config_json), std::move(entry));
}

}  // namespace braid

#include "quantize/plan.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/printable.h"
#include "quant/group_format.h"
#include "quantize/block_rounding.h"
#include "quantize/gguf_recipe.h"

namespace braid {
namespace {

constexpr std::array<int64_t, 3> kGroups = {128, 64, 32};
constexpr int64_t kMinBlock = 32;

// What a matrix is to be stored as, before its width is looked at.
struct Storage {
  enum class Sort { kKeep, kGroups, kRows, kBlocks } sort = Sort::kKeep;
  int64_t group = 0;  // kGroups; 0: the whole row
  bool asymmetric = false;
  const QuantFormat* format = nullptr;  // kBlocks
};

Storage gguf_storage_of(const std::string& text, const char* where) {
  if (text == "keep") return {};
  const QuantFormat* format = find_quant_format(text);
  if (format == nullptr || !is_gguf_format(*format) || !can_round_blocks(*format)) {
    throw UsageError(
        "{} '{}': unknown in GGUF files (known are keep, q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, "
        "q4_k, q6_k, bf16, f16 and f32)",
        where, printable(text));
  }
  return {Storage::Sort::kBlocks, 0, false, format};
}

Storage storage_of(const std::string& text, const Recipe& recipe, const char* where) {
  using Sort = Storage::Sort;
  if (recipe.gguf) return gguf_storage_of(text, where);
  if (text == "keep") return {};
  if (text == "w4a16") return {Sort::kGroups, recipe.group_size, recipe.asymmetric};
  if (text == "w8a8" || text == "w8c") return {Sort::kRows};
  const QuantFormat* format = find_quant_format(text);
  if (format != nullptr) {
    if (const auto group = as_group_format(*format); group && !group->f32_scales) {
      return {Sort::kGroups, group->group, group->asymmetric};
    }
    if (format->id == FormatId::kQ8_0 || format->id == FormatId::kQ4_0 ||
        format->id == FormatId::kQ4_1) {
      return {Sort::kBlocks, 0, false, format};
    }
  }
  throw UsageError(
      "{} '{}': unknown (known are keep, w4a16, w8a8, w4g128, w4g64, w4g32, their "
      "_asym forms, w8c, q8_0, q4_0 and q4_1)",
      where, printable(text));
}

bool quantised_by_default(ModuleKind kind, const Recipe& recipe) {
  switch (kind) {
    case ModuleKind::kAttention:
    case ModuleKind::kDeltaNet:
    case ModuleKind::kMlp:
    case ModuleKind::kExperts:
      return true;
    case ModuleKind::kEmbedding:
    case ModuleKind::kHead:
      return recipe.head;
    default:
      return false;
  }
}

// * stands for any text.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_matrix(const TensorPlan& tensor) {
  const int rank = tensor.shape.rank();
  if (tensor.kind == ModuleKind::kNorm || tensor.kind == ModuleKind::kConvolution ||
      tensor.kind == ModuleKind::kOther) {
    return false;
  }
  if (tensor.kind == ModuleKind::kMtp && tensor.name.find("norm") != tensor.name.npos) return false;
  return (rank == 2 && tensor.name.ends_with(".weight") && tensor.shape.dim(0) > 1) ||
         (rank == 3 && tensor.name.find("experts.") != tensor.name.npos);
}

std::string module_of(const std::string& name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

void choose_gguf_format(const Storage& storage, const Recipe& recipe, TensorPlan& tensor) {
  if (storage.format == nullptr) return;
  tensor.format = gguf_format_for_width(*storage.format, tensor.cols());
  if (tensor.format == storage.format) return;
  if (recipe.strict) {
    throw Error("{}: blocks of {} do not divide rows of {} values", printable(tensor.name),
                storage.format->name, tensor.cols());
  }
  tensor.note = tensor.format != nullptr
                    ? fmt::format("{}, as blocks of {} do not divide {}", tensor.format->name,
                                  storage.format->name, tensor.cols())
                    : fmt::format("as it was, as no blocks divide {}", tensor.cols());
}

// The format for the matrix's width, with a note where it is not the one asked for.
void choose_format(const Storage& storage, const Recipe& recipe, TensorPlan& tensor) {
  const int64_t cols = tensor.cols();
  if (recipe.gguf) {
    choose_gguf_format(storage, recipe, tensor);
    return;
  }
  if (storage.sort != Storage::Sort::kKeep && cols % kMinBlock != 0) {
    throw Error(
        "{}: rows of {} values are no multiple of {}, as all formats need; leave the matrix "
        "out with --keep '{}'",
        printable(tensor.name), cols, kMinBlock, printable(module_of(tensor.name)));
  }
  switch (storage.sort) {
    case Storage::Sort::kKeep:
      return;
    case Storage::Sort::kRows:
      tensor.format = &quant_format(FormatId::kW8C);
      return;
    case Storage::Sort::kBlocks:
      tensor.format = storage.format;
      return;
    case Storage::Sort::kGroups:
      break;
  }
  const int64_t wanted = storage.group == 0 ? kGroups.front() : storage.group;
  int64_t group = 0;
  for (const int64_t size : kGroups) {
    if (size <= wanted && cols % size == 0) {
      group = size;
      break;
    }
  }
  tensor.per_row = storage.group == 0;
  tensor.half_scales = recipe.half_scales;
  tensor.format = find_group_format({.group = static_cast<int>(group),
                                     .asymmetric = storage.asymmetric,
                                     .f32_scales = recipe.half_scales});
  if (group != wanted && !tensor.per_row) {
    if (recipe.strict) {
      throw Error("{}: groups of {} do not divide rows of {} values; --group-size {} does",
                  printable(tensor.name), wanted, cols, group);
    }
    tensor.note = fmt::format("groups of {}, as {} does not divide {}", group, wanted, cols);
  }
}

}  // namespace

std::string_view kv_recipe_name(KvRecipe kv) {
  switch (kv) {
    case KvRecipe::kInt8:
      return "int8";
    case KvRecipe::kInt8Static:
      return "int8-static";
    case KvRecipe::kUnspecified:
      break;
  }
  return "none";
}

bool has_grid(const TensorPlan& tensor) {
  switch (tensor.format->id) {
    case FormatId::kW8C:
    case FormatId::kQ8_0:
    case FormatId::kQ4_0:
    case FormatId::kQ4_1:
      return true;
    default:
      return as_group_format(*tensor.format).has_value();
  }
}

RoundingGrid grid_of(const TensorPlan& tensor) {
  RoundingGrid grid = rounding_grid(*tensor.format, tensor.cols(), tensor.per_row);
  if (tensor.half_scales) {
    grid.scale_type = FormatId::kF16;
    grid.least_zero = 1;  // files hold it less one, in four bits
  }
  return grid;
}

bool has_single_experts(const WeightMap& weights) {
  return std::any_of(weights.tensors().begin(), weights.tensors().end(),
                     [](const auto& entry) { return expert_name(entry.first).has_value(); });
}

int64_t count_layers(const WeightMap& weights) {
  int64_t count = 0;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (const auto layer = layer_of(name)) count = std::max(count, *layer + 1);
  }
  return count;
}

std::vector<TensorPlan> plan_tensors(const WeightMap& weights, const Recipe& recipe) {
  const GgufScheme* gguf = recipe.gguf ? find_gguf_scheme(recipe.scheme) : nullptr;
  if (recipe.gguf && gguf == nullptr) {
    throw UsageError("--scheme '{}': GGUF files have no such (they have {})",
                     printable(recipe.scheme), fmt::join(gguf_scheme_names(), ", "));
  }
  const Storage usual = gguf ? Storage() : storage_of(recipe.scheme, recipe, "--scheme");
  if (usual.sort == Storage::Sort::kGroups && recipe.group_size != 0 &&
      std::find(kGroups.begin(), kGroups.end(), recipe.group_size) == kGroups.end()) {
    throw UsageError("--group-size {}: must be 32, 64, 128 or channel", recipe.group_size);
  }
  std::vector<Storage> storages;
  for (const Recipe::Rule& rule : recipe.rules) {
    storages.push_back(storage_of(rule.storage, recipe, "--recipe"));
  }
  std::vector<bool> used(recipe.rules.size());

  const bool tied_head = weights.find("lm_head.weight") == nullptr;
  const int64_t num_layers = count_layers(weights);
  std::vector<TensorPlan> plans;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (tensor.parts != nullptr) {
      throw Error("{}: is quantised already ({} is {}); give the original", weights.origin(),
                  printable(name), tensor.dtype_name);
    }
    if (name.ends_with(".self_attn.k_scale") || name.ends_with(".self_attn.v_scale")) {
      throw Error("{}: is quantised already ({} belongs to its keys and values); give the original",
                  weights.origin(), printable(name));
    }
    TensorPlan& plan = plans.emplace_back();
    plan.name = name;
    plan.file_name = tensor.file_name.empty() ? name : tensor.file_name;
    plan.kind = module_kind(name);
    plan.shape = tensor.weight.shape;
    plan.source_type = tensor.dtype_name;
    plan.source_bytes = tensor.stored_bytes;
    if (!is_matrix(plan) || tensor.weight.format == nullptr) continue;
    Storage storage;
    if (gguf != nullptr) {
      storage.format = gguf_format(*gguf, plan, num_layers, tied_head);
    } else if (quantised_by_default(plan.kind, recipe)) {
      storage = usual;
    }
    const std::string module = module_of(name);
    for (size_t i = 0; i < recipe.rules.size(); ++i) {
      const std::string& modules = recipe.rules[i].modules;
      const auto kind = find_module_kind(modules);
      if (kind ? *kind != plan.kind : !matches(modules, module)) continue;
      storage = storages[i];
      used[i] = true;
    }
    choose_format(storage, recipe, plan);
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    throw Error(
        "--recipe '{}={}': no matrix of {} is called that (kinds are attention, deltanet, "
        "mlp, experts, shared_expert, router, gates, per_layer, embedding, head and mtp)",
        printable(recipe.rules[i].modules), printable(recipe.rules[i].storage), weights.origin());
  }
  if (gguf == nullptr && recipe.kv == KvRecipe::kUnspecified &&
      std::none_of(plans.begin(), plans.end(),
                   [](const TensorPlan& plan) { return plan.quantised(); })) {
    throw Error("{}: the recipe leaves nothing to quantise", weights.origin());
  }
  return plans;
}

}  // namespace braid

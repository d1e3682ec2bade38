#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/command.h"
#include "apps/device_options.h"
#include "apps/memory_options.h"
#include "apps/table.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "cache/cache_plan.h"
#include "engine/engine.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

struct InspectOptions {
  DeviceOptions device;
  MemoryOptions memory;
  int64_t context = 0;
  int64_t max_sequences = 1;
  bool tensors = false;
  bool json = false;
};

// As `run` would plan it with these sequences.
MemoryPlan plan_memory(const InspectOptions& options, const LoadedModel& loaded,
                       const CacheOptions& cache, const WeightBytes& weights) {
  const auto device = device_memory(loaded.device(), num_threads_of(options.device));
  MemoryPlan plan = base_plan(*device, loaded);
  add_model(plan, "", loaded.model(), weights, cache,
            {.tokens = cache.max_step_tokens,
             .logits_rows = cache.max_sequences,
             .edited_rows = cache.max_sequences,
             .sequences = cache.max_sequences,
             .precision = options.device.precision()},
            *device);
  return plan;
}

CacheOptions cache_of(const KvStorage& kv, const Model& model, const MemoryShape& shape) {
  return cache_options(model,
                       {.kv_dtype = kv.dtype,
                        .dynamic_kv_scales = kv.dynamic_scales,
                        .max_sequences = shape.sequences},
                       shape.context);
}

// Of the loaded model, or of its draft head, for the same sequences.
CachePlan make_plan(const InspectOptions& options, const KvStorage& kv, const Model& model) {
  const int64_t context = options.context > 0
                              ? options.context
                              : std::min(model.max_positions(), EngineOptions::kDefaultContext);
  if (context > model.max_positions()) {
    throw Error("--ctx-size {}: the model's limit is {}", context, model.max_positions());
  }
  return plan_cache(model.cache_layout(), cache_of(kv, model, {context, options.max_sequences}));
}

// Bytes and tensors by storage type, in the order of the names.
std::map<std::string, std::pair<int64_t, int64_t>> count_types(const WeightMap& weights) {
  std::map<std::string, std::pair<int64_t, int64_t>> types;
  for (const auto& [name, tensor] : weights.tensors()) {
    auto& [count, bytes] = types[tensor.dtype_name];
    ++count;
    bytes += tensor.stored_bytes;
  }
  return types;
}

Json to_json(const LayerInfo& info) {
  return {{"attention", info.attention},
          {"feed_forward", info.feed_forward},
          {"parameters", info.num_parameters},
          {"bytes_read_per_token", info.bytes_read_per_token}};
}

Json to_json(const InspectOptions& options, LoadedModel& loaded) {
  const Model& model = loaded.model();
  const LoadReport& report = model.load_report();
  const KvStorage kv = options.device.kv(loaded);
  const CachePlan plan = make_plan(options, kv, model);
  Json json;
  json["model"] = loaded.origin();
  json["packed"] = loaded.files().is_packed();
  json["family"] = model.family();
  json["vocab_size"] = model.vocab_size();
  json["hidden_size"] = model.hidden_size();
  json["max_positions"] = model.max_positions();
  json["parameters"] = report.num_parameters;
  json["weight_bytes"] = report.weight_bytes;
  json["tensors"] = {{"in_files", report.num_tensors},
                     {"consumed", report.num_consumed},
                     {"ignored", report.num_ignored}};
  for (int64_t i = 0; i < model.num_layers(); ++i) {
    json["layers"].push_back(to_json(model.layer_info(i)));
  }
  if (const Model* head = model.draft_head(); head != nullptr) {
    json["draft_head"] = to_json(head->layer_info(0));
    json["draft_head"]["family"] = head->family();
    json["draft_head"]["cache_bytes_per_token"] =
        make_plan(options, kv, *head).full_bytes_per_token();
  }
  for (const auto& [type, count] : count_types(loaded.files().weights())) {
    json["types"][type] = {{"tensors", count.first}, {"bytes", count.second}};
  }
  json["cache"] = {{"kv", kv.name},
                   {"full_bytes_per_token", plan.full_bytes_per_token()},
                   {"window_bytes_per_token", plan.window_bytes_per_token()},
                   {"recurrent_bytes_per_sequence", plan.recurrent_bytes_per_sequence()},
                   {"context", plan.options.max_sequence_tokens},
                   {"sequences", plan.options.max_sequences},
                   {"bytes_per_sequence", plan.sequence_bytes(plan.options.max_sequence_tokens)},
                   {"bytes", plan.size_bytes()}};
  json["stop_ids"] = loaded.generation().stop_ids;
  json["tokenizer"] = loaded.has_tokenizer();
  json["chat_template"] = loaded.has_chat_template();
  return json;
}

void print_tensors(const WeightMap& weights) {
  Table table({"tensor", "shape", "type", "bytes", "file"});
  for (const auto& [name, tensor] : weights.tensors()) {
    table.add({name, to_string(tensor.weight.shape), tensor.dtype_name,
               format_bytes(tensor.stored_bytes),
               std::filesystem::path(tensor.file).filename().string()});
  }
  fmt::print("\n{}", table.to_string());
}

void print_layers(const Model& model) {
  Table table({"layer", "attention", "feed-forward", "parameters", "read per token"});
  const auto add = [&](const std::string& label, const LayerInfo& info) {
    table.add({label, info.attention, info.feed_forward,
               format_count(static_cast<double>(info.num_parameters)),
               format_bytes(info.bytes_read_per_token)});
  };
  for (int64_t i = 0; i < model.num_layers(); ++i) add(std::to_string(i), model.layer_info(i));
  if (model.draft_head() != nullptr) add("mtp head", model.draft_head()->layer_info(0));
  fmt::print("\n{}", table.to_string());
}

void add_cache_rows(Table& table, const std::string& label, const CachePlan& plan) {
  const CacheOptions& options = plan.options;
  for (const CacheGroup& group : plan.groups) {
    const int64_t pages = pages_for_tokens(group, options.page_tokens, options.max_sequence_tokens);
    const std::string remembered =
        group.is_full() ? "all tokens" : fmt::format("last {} tokens", group.window);
    table.add({label + remembered, std::to_string(group.layers.size()),
               fmt::format("{} x {}", group.num_kv_heads, group.head_dim),
               format_bytes(group.bytes_per_token), format_bytes(pages * group.page_bytes)});
  }
  for (const RecurrentGroup& group : plan.recurrent_groups) {
    const RecurrentState& shape = group.shape;
    table.add({label + "state", std::to_string(group.layers.size()),
               fmt::format("{} x {} x {}, convolution {} x {}", shape.value_heads, shape.key_dim,
                           shape.value_dim, shape.conv_channels, shape.conv_width),
               "none", format_bytes(group.slot_bytes)});
  }
}

void print_cache(const InspectOptions& inspect, const LoadedModel& loaded) {
  const Model& model = loaded.model();
  const KvStorage kv = inspect.device.kv(loaded);
  const CachePlan plan = make_plan(inspect, kv, model);
  const CacheOptions& options = plan.options;
  const int64_t weight_bytes = model.load_report().weight_bytes;
  Table table({"cache", "layers", "heads x size", "bytes per token", "per sequence"});
  add_cache_rows(table, "", plan);
  if (const Model* head = model.draft_head(); head != nullptr) {
    add_cache_rows(table, "mtp head, if used: ", make_plan(inspect, kv, *head));
  }
  const int64_t sequence = plan.sequence_bytes(options.max_sequence_tokens);
  fmt::print("\n{}\n", table.to_string());
  fmt::print("memory: {} weights + {} x {} cache ({} tokens each, {} keys and values) = {}\n",
             format_bytes(weight_bytes), options.max_sequences, format_bytes(sequence),
             options.max_sequence_tokens, kv.name,
             format_bytes(weight_bytes + options.max_sequences * sequence));
}

void run_inspect(const InspectOptions& options) {
  options.device.apply();
  const int64_t budget = options.memory.budget_bytes();
  if (budget > 0) options.memory.describe(options.device);
  LoadedModel loaded = options.device.load(/*with_tokenizer=*/true, /*read_ahead=*/false);
  const KvStorage kv = options.device.kv(loaded);
  const CachePlan cache = make_plan(options, kv, loaded.model());
  const PlanWithWeights plan_with = [&](const MemoryShape& shape, const WeightBytes& weights) {
    return plan_memory(options, loaded, cache_of(kv, loaded.model(), shape), weights);
  };
  const MemoryPlanFunction plan = [&](const MemoryShape& shape) {
    return plan_weights(options.memory, options.device, loaded, shape, plan_with);
  };
  const MemoryShape shape{cache.options.max_sequence_tokens, cache.options.max_sequences};
  if (options.json) {
    Json json = to_json(options, loaded);
    if (budget > 0) {
      json["memory"] = memory_json(plan(shape), budget);
      const auto context = fitting_context(budget, shape, plan);
      json["memory"]["fits"] = plan(shape).total() <= budget;
      json["memory"]["largest_context"] = context ? Json(*context) : Json();
    }
    write_out(json.dump(2) + "\n");
    if (budget > 0) enforce_budget(budget, shape, plan);
    return;
  }
  const Model& model = loaded.model();
  const LoadReport& report = model.load_report();
  fmt::print("{}\n", loaded.origin());
  fmt::print("{}: {} layers, hidden size {}, vocabulary {}, context {}\n", model.family(),
             model.num_layers(), model.hidden_size(), model.vocab_size(), model.max_positions());
  fmt::print("{}\n", to_string(report));
  if (loaded.files().is_packed()) fmt::print("packed: weights in the layout of the kernels\n");
  fmt::print("tokenizer: {}; chat template: {}; stop ids: {}\n",
             loaded.has_tokenizer() ? "yes" : "none", loaded.has_chat_template() ? "yes" : "none",
             fmt::join(loaded.generation().stop_ids, ", "));
  print_layers(model);
  Table types({"stored as", "tensors", "bytes"});
  for (const auto& [type, count] : count_types(loaded.files().weights())) {
    types.add({type, std::to_string(count.first), format_bytes(count.second)});
  }
  fmt::print("\n{}", types.to_string());
  print_cache(options, loaded);
  if (options.tensors) print_tensors(loaded.files().weights());
  if (budget > 0) enforce_budget(budget, shape, plan);
}

}  // namespace

void add_inspect_command(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Show a model's layers, tensors and what memory it needs");
  options->device.add_model(*command);
  command
      ->add_option("-c,--ctx-size,--max-model-len", options->context,
                   "Tokens of context to plan for")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--max-sequences,--parallel", options->max_sequences, "Sequences to plan for")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_flag("--tensors", options->tensors, "List every tensor");
  command->add_flag("--json", options->json, "Print JSON");
  options->device.add_to(*command);
  options->memory.add_to(*command, /*offload=*/true);
  command->footer(
      "Examples:\n  braid inspect demo:gemma4\n  braid inspect model.gguf --tensors --ctx-size "
      "8192");
  command->callback([options] { run_inspect(*options); });
}

}  // namespace braid

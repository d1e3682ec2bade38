#include "apps/memory_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/byte_size.h"
#include "apps/table.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/pack_writer.h"
#include "engine/demo_models.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

// Tables of a tokenizer and of sampling, for each entry of the vocabulary; and what reading a
// tokenizer.json takes, by its size.
constexpr int64_t kVocabularyEntryBytes = 512;
constexpr int64_t kTokenizerJsonFactor = 8;

int64_t tokenizer_bytes(const LoadedModel& described) {
  std::error_code error;
  const auto json = std::filesystem::file_size(
      std::filesystem::path(described.origin()) / "tokenizer.json", error);
  return std::max(described.model().vocab_size() * kVocabularyEntryBytes,
                  error ? 0 : kTokenizerJsonFactor * static_cast<int64_t>(json));
}

int64_t stored_bytes(const WeightMap& weights) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : weights.tensors()) bytes += tensor.stored_bytes;
  return bytes;
}

}  // namespace

void MemoryOptions::add_to(CLI::App& command, bool offload) {
  auto* budget =
      command
          .add_option("--memory-budget", text_,
                      "Most memory to take, such as 10GiB or 512MiB: prints a plan, and refuses to "
                      "begin what does not fit")
          ->option_text("BYTES");
  if (!offload) return;
  command
      .add_flag("--offload", offload_,
                "With --device cuda: layers that the budget has no room for stay in the host's "
                "memory and come to the device for each step")
      ->needs(budget);
}

int64_t MemoryOptions::budget_bytes() const {
  if (!wanted()) return 0;
  try {
    return parse_byte_size(text_);
  } catch (const UsageError& error) {
    throw UsageError("--memory-budget: {}", error.what());
  }
}

LoadedModel MemoryOptions::describe(const DeviceOptions& device) const {
  if (offload_ && device.device == "cpu") throw UsageError("--offload is for --device cuda");
  const int64_t budget = budget_bytes();
  if (device.load_format != "dummy" && device.device == "cpu") {
    const std::filesystem::path path = resolve_model(device.model);
    const int64_t bytes = stored_bytes(ModelFiles::open(path).weights());
    if (bytes > budget) {
      throw Error("{}: the weights alone take {}, the memory budget is {}; no context fits",
                  path.string(), format_bytes(bytes), format_bytes(budget));
    }
  }
  return device.load(/*with_tokenizer=*/false, /*read_ahead=*/false);
}

int num_threads_of(const DeviceOptions& device) {
  return device.num_threads > 0 ? device.num_threads
                                : static_cast<int>(std::thread::hardware_concurrency());
}

MemoryPlan base_plan(const DeviceMemory& device, const LoadedModel& described) {
  MemoryPlan plan;
  device.add_fixed(plan);
  if (described.device().is_cpu()) {
    plan.add(MemoryKind::kFixed, "tokenizer and sampling", tokenizer_bytes(described));
  }
  return plan;
}

WeightBytes planned_weight_bytes(const DeviceOptions& device, const LoadedModel& described) {
  if (!described.device().is_cpu()) {
    return {described.placed().bytes, described.placed().beside};
  }
  const int64_t bytes = described.model().load_report().weight_bytes;
  if (device.load_format == "dummy" || device.weight_cache == "off") {
    return bytes;
  }
  const PackSize packed = packed_size(described.files());
  return packed.num_panels == 0 ? bytes : std::max(bytes, packed.bytes);
}

MemoryPlan plan_weights(const MemoryOptions& options, const DeviceOptions& device,
                        const LoadedModel& described, const MemoryShape& shape,
                        const PlanWithWeights& plan) {
  MemoryPlan all = plan(shape, planned_weight_bytes(device, described));
  const int64_t budget = options.budget_bytes();
  if (!options.offloads() || all.total() <= budget) return all;
  const MemoryPlan rest = plan(shape, WeightBytes(0, described.placed().beside));
  const auto weights = plan_offload(described.placed(), budget - rest.total());
  return weights ? plan(shape, *weights) : all;
}

std::optional<int64_t> fitting_context(int64_t budget, const MemoryShape& shape,
                                       const MemoryPlanFunction& plan) {
  return largest_fitting(1, shape.context, [&](int64_t context) {
    return plan({context, shape.sequences}).total() <= budget;
  });
}

void enforce_budget(int64_t budget, const MemoryShape& shape, const MemoryPlanFunction& plan) {
  const MemoryPlan asked = plan(shape);
  fmt::print(stderr, "{}", memory_table(asked, budget));
  if (!asked.layers_on_host.empty()) {
    spdlog::info("layers {} ({}) stay in the host's memory and come to the device for each step",
                 fmt::join(asked.layers_on_host, ", "), format_bytes(asked.host_bytes));
  }
  if (asked.total() <= budget) return;
  const auto context = fitting_context(budget, shape, plan);
  const auto sequences = largest_fitting(1, shape.sequences, [&](int64_t count) {
    return plan({shape.context, count}).total() <= budget;
  });
  std::string hint;
  if (context) {
    hint = fmt::format("; {} with a context of at most {} tokens",
                       shape.sequences == 1
                           ? "a sequence fits"
                           : fmt::format("{} sequences at a time fit", shape.sequences),
                       *context);
  }
  if (sequences && shape.sequences > 1) {
    hint += fmt::format("; with a context of {} tokens at most {} at a time", shape.context,
                        *sequences);
  }
  if (hint.empty()) hint = "; no context fits";
  throw Error("the memory budget is {}, but {} are needed ({}) for a context of {} tokens{}",
              format_bytes(budget), format_bytes(asked.total()), memory_by_kind(asked),
              shape.context, hint);
}

std::string memory_by_kind(const MemoryPlan& plan) {
  std::string text;
  for (const MemoryKind kind :
       {MemoryKind::kWeights, MemoryKind::kCache, MemoryKind::kWorkspace, MemoryKind::kFixed}) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", memory_kind_name(kind),
                        format_bytes(plan.bytes(kind)));
  }
  return text;
}

std::string memory_table(const MemoryPlan& plan, int64_t budget) {
  Table table({"bytes", "memory", "of what"});
  for (const MemoryItem& item : plan.items) {
    table.add({format_bytes(item.bytes), std::string(memory_kind_name(item.kind)), item.what});
  }
  table.add({format_bytes(plan.total()), "all", fmt::format("budget {}", format_bytes(budget))});
  return table.to_string();
}

nlohmann::ordered_json memory_json(const MemoryPlan& plan, int64_t budget) {
  nlohmann::ordered_json json;
  json["budget"] = budget;
  json["total"] = plan.total();
  if (!plan.layers_on_host.empty()) {
    json["layers_on_host"] = plan.layers_on_host;
    json["host_bytes"] = plan.host_bytes;
  }
  for (const MemoryKind kind :
       {MemoryKind::kWeights, MemoryKind::kCache, MemoryKind::kWorkspace, MemoryKind::kFixed}) {
    json[std::string(memory_kind_name(kind))] = plan.bytes(kind);
  }
  for (const MemoryItem& item : plan.items) {
    json["items"].push_back(
        {{"kind", memory_kind_name(item.kind)}, {"what", item.what}, {"bytes", item.bytes}});
  }
  return json;
}

void report_peak(const MemoryPlan& plan, Device device) {
  if (!device.is_cpu()) {
    const cuda::DeviceRoom room = cuda::device_room(device.index);
    spdlog::info("memory: {} planned; {} allocated at the peak, {} of the device in use by all",
                 format_bytes(plan.total()),
                 format_bytes(cuda::memory_use(device.index).peak_bytes),
                 format_bytes(room.total_bytes - room.free_bytes));
    return;
  }
  spdlog::info("memory: {} planned, {} at the peak of the process, mapped files included",
               format_bytes(plan.total()), format_bytes(peak_resident_bytes()));
}

}  // namespace braid

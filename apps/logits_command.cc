#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "apps/command.h"
#include "apps/device_options.h"
#include "apps/id_lines.h"
#include "apps/memory_options.h"
#include "apps/profile_options.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "cache/cache_pool.h"
#include "checkpoint/safetensors_writer.h"
#include "runner/runner.h"

namespace braid {
namespace {

struct LogitsOptions {
  DeviceOptions device;
  ProfileOptions profile;
  MemoryOptions memory;
  std::string ids_file;
  std::string output;
  int64_t batch_tokens = 0;
  bool hidden_states = false;
};

constexpr int64_t kMaxLogitsBytesPerStep = int64_t{64} << 20;

std::string logits_name(size_t line) { return fmt::format("logits.{}", line); }
std::string hidden_name(size_t line, int64_t layer) {
  return layer < 0 ? fmt::format("hidden.{}.embedding", line)
                   : fmt::format("hidden.{}.{}", line, layer);
}

// Writes each layer's rows as they are computed.
class HiddenStateWriter : public StepContext::Observer {
 public:
  HiddenStateWriter(SafetensorsWriter& writer, size_t line) : writer_(writer), line_(line) {}
  void layer_output(int64_t layer, const TensorView& x) override {
    writer_.write(hidden_name(line_, layer), x);
  }

 private:
  SafetensorsWriter& writer_;
  size_t line_;
};

CacheOptions logits_cache(const LogitsOptions& options, const LoadedModel& loaded,
                          int64_t longest) {
  const int64_t row_bytes = loaded.model().vocab_size() * static_cast<int64_t>(sizeof(float));
  const int64_t step_tokens =
      options.batch_tokens > 0 ? options.batch_tokens
                               : std::clamp<int64_t>(kMaxLogitsBytesPerStep / row_bytes, 16, 512);
  const KvStorage kv = options.device.kv(loaded);
  return {.kv_dtype = kv.dtype,
          .dynamic_kv_scales = kv.dynamic_scales,
          .max_tokens = longest,
          .max_step_tokens = std::min(step_tokens, longest)};
}

MemoryPlan plan_memory(const LogitsOptions& options) {
  const LoadedModel described = options.memory.describe(options.device);
  const Model& model = described.model();
  const auto device = device_memory(described.device(), num_threads_of(options.device));
  int64_t longest = 1;
  for (const auto& line : read_id_lines(options.ids_file, model.vocab_size())) {
    longest = std::max<int64_t>(longest, std::ssize(line));
  }
  const PlanWithWeights plan_with = [&](const MemoryShape& shape, const WeightBytes& weights) {
    const CacheOptions cache = logits_cache(options, described, shape.context);
    MemoryPlan result = base_plan(*device, described);
    add_model(result, "", model, weights, cache,
              {.tokens = cache.max_step_tokens,
               .logits_rows = cache.max_step_tokens,
               .precision = options.device.precision()},
              *device);
    return result;
  };
  const MemoryPlanFunction plan = [&](const MemoryShape& shape) {
    return plan_weights(options.memory, options.device, described, shape, plan_with);
  };
  enforce_budget(options.memory.budget_bytes(), {.context = longest}, plan);
  return plan({.context = longest});
}

void run_logits(const LogitsOptions& options) {
  options.profile.check();
  options.device.apply();
  if (options.memory.wanted() && options.ids_file == "-") {
    throw UsageError("--memory-budget needs the ids in a file, to plan before they are computed");
  }
  std::optional<MemoryPlan> memory;
  if (options.memory.wanted()) memory = plan_memory(options);
  const LoadedModel loaded = options.device.load(
      /*with_tokenizer=*/false, /*read_ahead=*/true,
      memory ? memory->layers_on_host : std::vector<int64_t>());
  const Model& model = loaded.model();
  spdlog::info("{}", to_string(model.load_report()));
  const auto lines = read_id_lines(options.ids_file, model.vocab_size());

  int64_t longest = 0;
  std::vector<SafetensorsWriter::Declaration> tensors;
  for (size_t i = 0; i < lines.size(); ++i) {
    const int64_t length = static_cast<int64_t>(lines[i].size());
    longest = std::max(longest, length);
    if (length > model.max_positions()) {
      throw Error("{}:{}: {} tokens, but the model's context is {}", options.ids_file, i + 1,
                  length, model.max_positions());
    }
    tensors.push_back({logits_name(i), DType::kF32, {length, model.vocab_size()}});
    for (int64_t layer = -1; options.hidden_states && layer < model.num_layers(); ++layer) {
      tensors.push_back({hidden_name(i, layer), DType::kF32, {length, model.hidden_size()}});
    }
  }

  ThreadPool threads(options.device.thread_pool());
  Stream stream(threads, loaded.device());
  stream.set_profiler(options.profile.profiler());
  CachePool pool(model.cache_layout(), logits_cache(options, loaded, longest), loaded.device());
  RunnerOptions runner_options{.precision = options.device.precision(),
                               .deterministic = options.device.deterministic};
  if (memory) {
    runner_options.workspace_bytes = static_cast<size_t>(memory->bytes(MemoryKind::kWorkspace));
  }
  Runner runner(model, pool, stream, runner_options);
  SafetensorsWriter writer(options.output, tensors);
  for (size_t i = 0; i < lines.size(); ++i) {
    SequenceState sequence(pool);
    HiddenStateWriter hidden(writer, i);
    const std::span<const int32_t> ids = lines[i];
    for (size_t begin = 0; begin < ids.size(); begin += runner.max_step_tokens()) {
      const size_t count = std::min<size_t>(runner.max_step_tokens(), ids.size() - begin);
      StepPlan plan;
      plan.sequences.push_back({&sequence, ids.subspan(begin, count), WantedLogits::kAll});
      const StepResult result =
          runner.run(plan, {.observer = options.hidden_states ? &hidden : nullptr});
      BRAID_CHECK(result.status == StepStatus::kDone, "line {} does not fit the cache made for it",
                  i);
      writer.write(logits_name(i), result.logits);
    }
  }
  writer.finish();
  options.profile.report();
  if (memory) report_peak(*memory, loaded.device());
  spdlog::info("{}: logits of {} sequences", options.output, lines.size());
}

}  // namespace

void add_logits_command(CLI::App& app) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command = app.add_subcommand("logits", "Write the logits of given token ids to a file");
  options->device.add_model(*command);
  command
      ->add_option("--ids-file", options->ids_file,
                   "Token ids, one sequence a line, separated by blanks (-: standard input)")
      ->required();
  command
      ->add_option("-o,--output", options->output,
                   "safetensors file to write: logits.0, logits.1, … [tokens, vocabulary] float32")
      ->required();
  command
      ->add_option("--batch-tokens", options->batch_tokens,
                   "Most tokens in one forward pass (0: by size)")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--hidden-states", options->hidden_states,
                    "Also write each layer's output: hidden.LINE.LAYER [tokens, hidden]");
  options->device.add_to(*command);
  options->memory.add_to(*command, /*offload=*/true);
  options->profile.add_to(*command);
  command->footer(
      "Examples:\n"
      "  echo '2 105 2364 107' > ids.txt\n"
      "  braid logits ./gemma-3-270m --ids-file ids.txt --output logits.safetensors --compute f32");
  command->callback([options] { run_logits(*options); });
}

}  // namespace braid

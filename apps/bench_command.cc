#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/bench_output.h"
#include "apps/command.h"
#include "apps/command_line.h"
#include "apps/device_options.h"
#include "apps/memory_options.h"
#include "apps/profile_options.h"
#include "apps/progress_bar.h"
#include "apps/text_io.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/log.h"
#include "benchmark/cuda/device_ceilings.h"
#include "benchmark/html_report.h"
#include "benchmark/model_benchmark.h"
#include "benchmark/op_benchmark.h"

namespace braid {

void add_bench_compare_command(CLI::App& bench);

namespace {

// What rows of models and of ops have in common.
struct OutputOptions {
  std::vector<int> threads = {0};
  int repetitions = 5;
  bool measure_ceilings = false;
  bool json = false;
  std::string output;
  std::string html;

  void add_to(CLI::App& command) {
    command
        .add_option("-t,--threads", threads,
                    "CPU threads, several with commas (0: one per processor)")
        ->delimiter(',')
        ->check(CLI::Range(0, 4096))
        ->capture_default_str();
    command.add_option("-r,--repetitions", repetitions, "Measured runs of each row")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    command.add_flag("--ceilings", measure_ceilings,
                     "Measure the machine's ceilings again, rather than take those of an earlier "
                     "run from the user's cache folder");
    command.add_flag("--json", json, "Print JSON instead of a table");
    command.add_option("-o,--output", output, "Also write the JSON to a file")->option_text("FILE");
    command.add_option("--html", html, "Also write a page with plots")->option_text("FILE");
  }

  void print(const BenchResult& result) const {
    const std::string as_json = to_json(result);
    if (!output.empty()) write_text_file(output, as_json);
    if (!html.empty()) write_text_file(html, to_html(result));
    write_out(json ? as_json : bench_table(result));
  }
};

struct BenchOptions {
  DeviceOptions device;
  ProfileOptions profile;
  MemoryOptions memory;
  OutputOptions output;
  ModelBenchmarkOptions rows;
  std::vector<std::string> jobs;
};

struct KernelOptions {
  OutputOptions output;
  std::string isa;
  std::string filter;
  bool list = false;
};

// "10x256+32".
BenchJob parse_job(const std::string& text) {
  BenchJob job;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](int64_t& value, char before) {
    if (before != '\0' && (at == end || *at++ != before)) return false;
    const auto [rest, error] = std::from_chars(at, end, value);
    at = rest;
    return error == std::errc() && value > 0 && value <= (1 << 24);
  };
  if (number(job.sequences, '\0') && number(job.prompt, 'x') && number(job.generate, '+') &&
      at == end && job.sequences <= 4096) {
    return job;
  }
  throw UsageError("--jobs '{}': expected sequences, tokens in and out, such as 10x256+32", text);
}

// The storage format that most bytes of a file's tensors are in.
std::string main_format(const WeightMap& weights) {
  std::map<std::string_view, int64_t> bytes;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (tensor.weight.format != nullptr) bytes[tensor.weight.format->name] += tensor.stored_bytes;
  }
  const auto most = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "weights" : std::string(most->first);
}

class Bar {
 public:
  BenchProgressFunction function() {
    return [this](const BenchProgress& p) { bar_.show(p.done, p.total, p.seconds_left, p.what); };
  }

 private:
  ProgressBar bar_;
};

std::vector<Ceilings> ceilings_for(const OutputOptions& options) {
  return find_ceilings(options.threads, options.measure_ceilings, CeilingCache());
}

void settle_kv(const BenchOptions& options, const LoadedModel& loaded,
               ModelBenchmarkOptions& rows) {
  const KvStorage kv = options.device.kv(loaded);
  rows.kv_dtype = kv.dtype;
  rows.dynamic_kv_scales = kv.dynamic_scales;
}

// Each number of threads has a cache and a workspace of its own.
MemoryPlan plan_memory(const BenchOptions& options, ModelBenchmarkOptions& rows) {
  const LoadedModel described = options.memory.describe(options.device);
  settle_kv(options, described, rows);
  const Model& model = described.model();
  const bool on_cpu = described.device().is_cpu();
  std::set<int> threads;
  for (const int count : rows.threads) {
    threads.insert(count > 0 ? count : num_threads_of(options.device));
  }
  // The reading speed is measured with a buffer beyond all caches (benchmark/ceilings.cc).
  constexpr int64_t kCeilingBytes = int64_t{512} << 20;
  const CeilingCache known;
  const bool measures = on_cpu && (options.output.measure_ceilings ||
                                   !std::all_of(threads.begin(), threads.end(),
                                                [&](int count) { return known.find(count); }));
  const PlanWithWeights plan_with = [&](const MemoryShape& shape, const WeightBytes& weights) {
    const CacheOptions cache = benchmark_cache(rows, shape.context, shape.sequences);
    const StepSize step{.tokens = cache.max_step_tokens,
                        .logits_rows = shape.sequences,
                        .sequences = shape.sequences,
                        .precision = rows.precision};
    MemoryPlan result = base_plan(*device_memory(described.device(), *threads.rbegin()), described);
    if (measures) result.add(MemoryKind::kFixed, "measuring the ceilings", kCeilingBytes);
    for (const int count : threads) {
      const std::string name = threads.size() > 1 ? fmt::format("{} threads: ", count) : "";
      add_model(result, name, model, count == *threads.begin() ? weights : WeightBytes(0), cache,
                step, *device_memory(described.device(), count));
    }
    return result;
  };
  const MemoryPlanFunction plan = [&](const MemoryShape& shape) {
    MemoryPlan result = plan_weights(options.memory, options.device, described, shape, plan_with);
    // Of a device they are measured before the model is there.
    if (!on_cpu) {
      result.add(MemoryKind::kFixed, "measuring the ceilings",
                 cuda::kCeilingBytes - (result.total() - result.bytes(MemoryKind::kFixed)));
    }
    return result;
  };
  const MemoryShape shape{longest_sequence(rows), most_sequences(rows)};
  enforce_budget(options.memory.budget_bytes(), shape, plan);
  return plan(shape);
}

void run_bench(BenchOptions& options, const CLI::App& command) {
  options.profile.check();
  options.device.apply();
  ModelBenchmarkOptions& rows = options.rows;
  for (const std::string& job : options.jobs) rows.jobs.push_back(parse_job(job));
  const bool on_cpu = options.device.device == "cpu";
  rows.threads = on_cpu ? options.output.threads : std::vector<int>{1};  // a device does the work
  rows.precision = options.device.precision();
  rows.deterministic = options.device.deterministic;
  std::optional<MemoryPlan> memory;
  if (options.memory.wanted()) {
    memory = plan_memory(options, rows);
    // That of the most threads is the largest.
    for (const MemoryItem& item : memory->items) {
      if (item.kind != MemoryKind::kWorkspace) continue;
      rows.workspace_bytes = std::max(rows.workspace_bytes, item.bytes);
    }
  }
  BenchResult result;
  if (!on_cpu) {
    result.ceilings = {cuda::measure_device_ceilings(0)};
    result.ceilings[0].threads = 1;
  }
  const LoadedModel loaded = options.device.load(
      /*with_tokenizer=*/false, /*read_ahead=*/true,
      memory ? memory->layers_on_host : std::vector<int64_t>());
  const Model& model = loaded.model();
  settle_kv(options, loaded, rows);

  std::vector<Profiler::Event> events;
  int64_t num_dropped = 0;
  rows.repetitions = options.output.repetitions;
  rows.pin_threads = options.device.pin_threads;
  rows.device = loaded.device();
  rows.seed = options.device.dummy_seed;
  if (options.profile.wants_trace()) {
    rows.on_profile = [&](const Profiler& profiler) {
      events.insert(events.end(), profiler.events().begin(), profiler.events().end());
      num_dropped += profiler.num_dropped_events();
    };
  }
  result.environment = current_environment(command_line("braid bench", command));
  result.model = loaded.origin();
  result.family = model.family();
  result.weights = options.device.load_format == "dummy"
                       ? "dummy " + options.device.dummy_storage()
                       : main_format(loaded.files().weights()) + " of the file";
  result.compute = options.device.compute;
  if (on_cpu) result.ceilings = ceilings_for(options.output);
  {
    Bar bar;
    result.rows = run_model_benchmark(model, rows, bar.function());
  }
  options.output.print(result);
  if (memory) report_peak(*memory, loaded.device());
  if (options.profile.wanted()) {
    for (const BenchRow& row : result.rows) {
      const Ceilings* ceilings = result.ceilings_for(row.threads);
      fmt::print(
          stderr, "\n{}\n{}",
          profile_summary(row.key() + ": one repetition", row.work.seconds, row.profile_cost),
          profile_tables(row.ops, row.work.seconds,
                         ceilings != nullptr ? ceilings->read_bytes_per_second : 0));
    }
  }
  if (options.profile.wants_trace()) options.profile.write_trace(events, num_dropped);
}

void run_kernels(const KernelOptions& options, const CLI::App& command) {
  if (!options.isa.empty()) force_isa(parse_isa(options.isa));
  if (options.list) {
    for (const std::string& name : op_case_names()) write_out(name + "\n");
    return;
  }
  BenchResult result;
  result.environment = current_environment(command_line("braid bench", command));
  result.model = "ops";
  {
    Bar bar;
    result.rows = run_op_benchmark({.filter = options.filter,
                                    .threads = options.output.threads,
                                    .repetitions = options.output.repetitions},
                                   bar.function());
  }
  result.ceilings = ceilings_for(options.output);
  options.output.print(result);
}

void add_kernels_command(CLI::App& bench) {
  auto options = std::make_shared<KernelOptions>();
  CLI::App* command = bench.add_subcommand(
      "kernels", "Single ops at the shapes of real models, beside the ceilings");
  command->add_option("--filter", options->filter, "Only cases whose names match")
      ->option_text("REGEX");
  command->add_flag("--list", options->list, "Print the names of the cases and end");
  command->add_option("--isa", options->isa, "Force the CPU kernels of an instruction set")
      ->check(CLI::IsMember({"portable", "avx2", "avx512"}));
  options->output.add_to(*command);
  command->callback([options, command] { run_kernels(*options, *command); });
}

void add_counts(CLI::App& command, const char* name, std::vector<int64_t>& counts,
                const char* description, int64_t lowest, int64_t highest) {
  command.add_option(name, counts, description)
      ->delimiter(',')
      ->check(CLI::Range(lowest, highest))
      ->capture_default_str();
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand(
      "bench", "Measure prefill and decode speed, beside what the machine can do at best");
  options->device.add_model(*command);
  add_counts(*command, "-p,--prompt", options->rows.prompts,
             "Tokens of a prompt, several with commas (0: no prefill rows)", 0, 1 << 24);
  add_counts(*command, "-n,--generate", options->rows.generates,
             "Tokens to generate (0: no decode rows)", 0, 1 << 24);
  add_counts(*command, "-b,--batch", options->rows.batches, "Sequences that generate side by side",
             1, 4096);
  add_counts(*command, "--prompt-batch", options->rows.prompt_batches,
             "Prompts computed side by side", 1, 4096);
  command
      ->add_option("--jobs", options->jobs,
                   "Whole jobs, several with commas: 10x256+32 is ten prompts of 256 tokens and 32 "
                   "steps after them, measured as one")
      ->delimiter(',')
      ->option_text("NxIN+OUT");
  add_counts(*command, "--depth", options->rows.depths,
             "Tokens in the cache before the measured ones", 0, 1 << 24);
  command
      ->add_option("--batch-tokens,--ubatch-size", options->rows.batch_tokens,
                   "Most tokens in one forward pass")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  options->device.add_to(*command);
  command->remove_option(command->get_option("--threads"));
  options->output.add_to(*command);
  options->memory.add_to(*command, /*offload=*/true);
  options->profile.add_to(*command);
  command->footer(
      "Examples:\n"
      "  braid bench gemma-3-270m.gguf\n"
      "  braid bench ./gemma-4-12b --load-format dummy --weights q4_0 --batch 1,8 \\\n"
      "    --threads 1,2 --html report.html --json > after.json\n"
      "  braid bench compare before.json after.json --tolerance 10\n"
      "  braid bench kernels --filter 'linear q4_0'\n"
      "Rows: ppN, a prompt of N tokens; tgN, N tokens generated; jobP+N, both in turn. GB: weights "
      "and cache that one\n"
      "repetition must read or write; GOP: multiplications and additions; share: time they take "
      "at\n"
      "the binding ceiling, by the time it took.");
  command->require_subcommand(0, 1);
  add_bench_compare_command(*command);
  add_kernels_command(*command);
  command->callback([options, command] {
    if (command->get_subcommands().empty()) run_bench(*options, *command);
  });
}

}  // namespace braid

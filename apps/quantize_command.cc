#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>

#include "apps/command.h"
#include "apps/device_options.h"
#include "apps/interrupt.h"
#include "apps/memory_options.h"
#include "apps/progress_bar.h"
#include "apps/quantize_memory.h"
#include "apps/table.h"
#include "apps/text_io.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/demo_models.h"
#include "engine/model_tokenizer.h"
#include "quantize/calibration_text.h"
#include "quantize/gguf_recipe.h"
#include "quantize/quantizer.h"
#include "quantize/report.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

struct QuantizeCommandOptions {
  std::string model, out;
  std::string scheme = "w4a16", method, group_size = "128", format = "auto", kv = "none";
  std::string calibration, isa;
  std::string device = "cpu", compute = "auto", load_format = "auto";
  uint64_t dummy_seed = 0;
  std::vector<std::string> recipe, keep;
  bool asymmetric = false, strict = false, head = false, split_experts = false;
  bool json = false, one_pass = false, match_source = false;
  std::string scale_search = "auto", order = "size";
  double balance = 0, damping = 0.01, min_inputs = 0.25, shard_gigabytes = 5;
  int64_t sequences = 128, length = 512;
  uint64_t seed = 0;
  int num_threads = 0, refinements = 3;
  MemoryOptions memory;
};

constexpr std::string_view kDefaultText = "calibration/calibration.txt";

// The text that comes with the bundled models.
fs::path default_calibration() {
  for (const std::string& name : demo_model_names()) {
    const fs::path text = resolve_model("demo:" + name).parent_path() / kDefaultText;
    if (fs::is_regular_file(text)) return text;
  }
  throw UsageError("--calibration is required: the bundled text is not there");
}

// GGUF where the scheme or OUT's name says so.
QuantizedFileFormat file_format_of(const QuantizeCommandOptions& o) {
  const bool named = fs::path(o.out).extension() == ".gguf";
  const bool gguf = o.format == "gguf" ||
                    (o.format == "auto" && (named || find_gguf_scheme(o.scheme) != nullptr));
  if (gguf) {
    if (!named) throw UsageError("-o {}: a GGUF file is to be called *.gguf", o.out);
    if (find_gguf_scheme(o.scheme) == nullptr) {
      throw UsageError("--scheme {}: GGUF files have {}", o.scheme,
                       fmt::join(gguf_scheme_names(), ", "));
    }
    return QuantizedFileFormat::kGguf;
  }
  if (find_gguf_scheme(o.scheme) != nullptr) {
    throw UsageError("--scheme {} is for GGUF files, not --format {}", o.scheme, o.format);
  }
  return o.format == "gptq" ? QuantizedFileFormat::kGptq : QuantizedFileFormat::kCompressedTensors;
}

KvRecipe kv_recipe_of(const QuantizeCommandOptions& o, QuantizedFileFormat format) {
  if (o.kv == "none") return KvRecipe::kUnspecified;
  if (format == QuantizedFileFormat::kGguf) {
    throw UsageError(
        "--kv {}: a GGUF file has no place for it, a folder has; from the file, "
        "braid run --kv int8 keeps keys and values in int8 with scales that it finds itself",
        o.kv);
  }
  if (format == QuantizedFileFormat::kGptq) {
    throw UsageError("--kv {}: --format gptq has no place for it; compressed-tensors has", o.kv);
  }
  return o.kv == "int8" ? KvRecipe::kInt8 : KvRecipe::kInt8Static;
}

QuantizeOptions make_options(const QuantizeCommandOptions& o) {
  QuantizeOptions options;
  Recipe& recipe = options.recipe;
  recipe.scheme = o.scheme;
  if (o.group_size == "channel") {
    recipe.group_size = 0;
  } else {
    recipe.group_size = std::stoll(o.group_size);
  }
  recipe.asymmetric = o.asymmetric;
  recipe.strict = o.strict;
  recipe.head = o.head;
  for (const std::string& rule : o.recipe) {
    const size_t at = rule.find('=');
    if (at == rule.npos || at == 0 || at + 1 == rule.size()) {
      throw UsageError("--recipe '{}': write MODULES=FORMAT", rule);
    }
    recipe.rules.push_back({rule.substr(0, at), rule.substr(at + 1)});
  }
  for (const std::string& modules : o.keep) recipe.rules.push_back({modules, "keep"});
  std::string method = o.method;
  if (method.empty()) method = o.scheme == "w4a16" ? "gptq" : "rtn";
  options.method = method == "gptq" ? QuantizeMethod::kGptq : QuantizeMethod::kNearest;
  options.file_format = file_format_of(o);
  recipe.gguf = options.file_format == QuantizedFileFormat::kGguf;
  recipe.half_scales = options.file_format == QuantizedFileFormat::kGptq;
  recipe.kv = kv_recipe_of(o, options.file_format);
  if (o.scheme == "keep" && o.recipe.empty() && recipe.kv == KvRecipe::kUnspecified) {
    throw UsageError("--scheme keep changes nothing without --kv or --recipe");
  }
  if (!std::isfinite(o.balance)) throw UsageError("--balance: not in range [0 - 1]");
  if (o.balance > 0 && recipe.gguf) {
    throw UsageError("--balance {}: is for folders, not for GGUF files", o.balance);
  }
  options.balance = o.balance;
  options.measure_outputs = !o.calibration.empty();
  options.gptq.damping = o.damping;
  options.gptq.order = o.order == "group"  ? ColumnOrder::kByGroup
                       : o.order == "size" ? ColumnOrder::kBySize
                                           : ColumnOrder::kInPlace;
  options.gptq.refinements = o.refinements;
  options.gptq.search_scales = o.scale_search != "off";
  options.search_scales = o.scale_search == "on";
  options.split_experts = o.split_experts;
  options.one_pass = o.one_pass;
  if (o.match_source && options.method != QuantizeMethod::kGptq) {
    throw UsageError("--match-source is for --method gptq");
  }
  options.match_source = o.match_source;
  options.min_inputs_per_column = o.min_inputs;
  options.max_shard_bytes = static_cast<int64_t>(o.shard_gigabytes * 1e9);
  if (o.device == "cuda") options.device = {DeviceKind::kCuda, 0};
  const bool rounds = o.compute == "bf16" || (o.compute == "auto" && o.device == "cuda");
  options.precision = rounds ? ActivationPrecision::kBF16 : ActivationPrecision::kF32;
  options.dummy_weights = o.load_format == "dummy";
  options.dummy_seed = o.dummy_seed;
  return options;
}

// For models of random weights, which have no text.
CalibrationTokens random_tokens(const QuantizeCommandOptions& o, const fs::path& model) {
  const ModelFiles files = ModelFiles::open(model, /*with_weights=*/false);
  const int64_t vocab = files.text_config().integer("vocab_size");
  std::mt19937_64 engine(o.seed);
  CalibrationTokens tokens{.length = o.length};
  for (int64_t i = 0; i < o.sequences; ++i) {
    std::vector<int32_t>& sequence = tokens.sequences.emplace_back();
    for (int64_t t = 0; t < o.length; ++t) {
      sequence.push_back(static_cast<int32_t>(engine() % static_cast<uint64_t>(vocab)));
    }
  }
  return tokens;
}

CalibrationTokens read_calibration(const QuantizeCommandOptions& o, const fs::path& model,
                                   bool needed) {
  if (!needed && o.calibration.empty()) return {};
  if (o.load_format == "dummy") return random_tokens(o, model);
  const ModelFiles files = ModelFiles::open(model, /*with_weights=*/false);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(files);
  if (tokenizer == nullptr) fail_without_tokenizer(model.string());
  const std::string path = o.calibration.empty() ? default_calibration().string() : o.calibration;
  const std::string text = read_input(path);
  CalibrationTokens tokens = calibration_from_text(
      text, path, *tokenizer, {.num_sequences = o.sequences, .length = o.length, .seed = o.seed});
  if (static_cast<int64_t>(tokens.sequences.size()) < o.sequences) {
    spdlog::warn("{}: {} sequences of {} tokens, not {}", path, tokens.sequences.size(), o.length,
                 o.sequences);
  }
  return tokens;
}

void print_json(const QuantizeCommandOptions& o, const QuantizeResult& r,
                const std::optional<MemoryPlan>& plan) {
  nlohmann::ordered_json json = {{"output", o.out}, {"files", nlohmann::ordered_json::array()}};
  for (const fs::path& file : r.files) json["files"].push_back(file.string());
  json.update(result_json(r));
  if (plan) json["memory"] = memory_json(*plan, o.memory.budget_bytes());
  write_out(json.dump(2) + "\n");
}

void print_summary(const QuantizeCommandOptions& o, const QuantizeResult& r) {
  const auto share = 100.0 * static_cast<double>(r.num_parameters_quantised) /
                     static_cast<double>(r.num_parameters);
  fmt::print("{}: {} of {} tensors quantised, {:.1f} % of {} parameters; {} from {}, in {:.1f} s\n",
             o.out, r.num_quantised, r.num_tensors, share, r.num_parameters,
             format_bytes(r.bytes_after), format_bytes(r.bytes_before), r.times.total);
  if (r.num_starved > 0) {
    fmt::print("{} matrices of experts met too few tokens and were rounded to nearest\n",
               r.num_starved);
  }
  const fs::path report = fs::path(o.out).extension() == ".gguf" ? gguf_report_path(o.out, ".md")
                                                                 : fs::path(o.out) / "report.md";
  fmt::print("errors and all tensors: {}\n", report.string());
}

void run_quantize(const QuantizeCommandOptions& o) {
  if (!o.isa.empty()) force_isa(parse_isa(o.isa));
  DeviceOptions device;
  device.model = o.model;
  device.device = o.device;
  device.apply();
  const fs::path model = resolve_model(o.model);
  QuantizeOptions options = make_options(o);
  const CalibrationTokens calibration =
      read_calibration(o, model,
                       options.method == QuantizeMethod::kGptq ||
                           options.recipe.kv == KvRecipe::kInt8Static || options.balance > 0);
  std::optional<MemoryPlan> plan;
  if (o.memory.wanted()) {
    const CalibrationShape shape{static_cast<int64_t>(calibration.sequences.size()),
                                 calibration.length};
    plan = enforce_quantize_budget(o.memory.budget_bytes(), MemoryNeed(model, options), options,
                                   shape, num_threads_of({.num_threads = o.num_threads}));
  }
  ThreadPool pool({.num_threads = o.num_threads});
  const InterruptGuard interrupt;
  QuantizeResult result;
  {
    ProgressBar bar;
    const auto start = std::chrono::steady_clock::now();
    options.progress = [&](const QuantizeProgress& p) {
      if (interrupt.interrupted()) {
        throw Error("interrupted; {} was not written, the same command goes on with it", o.out);
      }
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      const auto done = static_cast<double>(p.done - p.resumed);
      const double rate = done / elapsed.count();
      const double left = done > 0 ? static_cast<double>(p.total - p.done) / rate : -1;
      bar.show(p.done / 1'000, p.total / 1'000, left,
               done > 0 ? fmt::format("{:.2f} M parameters/s, {}", rate / 1e6, p.phase) : p.phase);
    };
    result = quantize_model(model, o.out, calibration, pool, options);
  }
  o.json ? print_json(o, result, plan) : print_summary(o, result);
  if (plan) report_peak(*plan, options.device);
}

}  // namespace

void add_quantize_command(CLI::App& app) {
  auto o = std::make_shared<QuantizeCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "quantize", "Make a model's weights smaller, and report what that does to them");
  command
      ->add_option("MODEL", o->model,
                   "Hugging Face folder, .gguf file, or demo:NAME (a bundled model)")
      ->option_text(" ")
      ->required();
  command->add_option("-o,--output", o->out, "Folder or .gguf file to write; must not exist yet")
      ->option_text("OUT")
      ->required();
  command
      ->add_option("--scheme", o->scheme,
                   "w4a16 (4-bit weights in groups), w8a8 (int8 weights, one scale a row; inputs "
                   "are rounded to int8 as they come), keep (as they are, for --kv and --recipe), "
                   "or of a GGUF file: q4_0, q4_1, q5_0, q5_1, "
                   "q8_0, iq4_nl, q4_k (q4_k_m), q4_k_s, q6_k, bf16, f16, f32")
      ->check(CLI::IsMember({"w4a16", "w8a8", "keep", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
                             "iq4_nl", "q4_k", "q4_k_m", "q4_k_s", "q6_k", "bf16", "f16", "f32"}))
      ->capture_default_str();
  command
      ->add_option("--method", o->method,
                   "gptq (needs calibration; default for w4a16) or rtn (to nearest)")
      ->check(CLI::IsMember({"gptq", "rtn"}));
  command->add_option("--group-size", o->group_size, "Of w4a16; channel: one scale a row")
      ->check(CLI::IsMember({"32", "64", "128", "channel"}))
      ->capture_default_str();
  command->add_flag("--asymmetric", o->asymmetric, "w4a16: each group has a zero of its own");
  command->add_flag("--strict", o->strict,
                    "A group size that does not divide a matrix's width is an error, rather than "
                    "replaced by a smaller one");
  command
      ->add_option(
          "--kv", o->kv,
          "How keys and values are to be kept when the model runs: none (the folder does "
          "not say), int8 (a scale for each token and head, found as they come), "
          "int8-static (one for each layer's keys and one for its values, calibrated here)")
      ->check(CLI::IsMember({"none", "int8", "int8-static"}))
      ->capture_default_str();
  command
      ->add_option("--balance", o->balance,
                   "Strength, from 0 (not at all) to 1: multiply columns of matrices, and divide "
                   "what makes their inputs, so that both lose little (SmoothQuant); the model "
                   "stays the same. Needs calibration; of use with w8a8, where 0.5 is a good start")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option(
      "--calibration", o->calibration,
      "Text, or JSON lines with a field \"text\" (-: standard input); the bundled "
      "text if not given. With rtn, to measure errors, and for --kv int8-static and "
      "--balance");
  command->add_option("--sequences", o->sequences, "Of calibration")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--sequence-length", o->length, "Tokens of each")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--seed", o->seed, "Of the choice of sequences")->capture_default_str();
  command->add_option("--damping", o->damping, "GPTQ: share of the mean diagonal that is added")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command
      ->add_option("--act-order", o->order,
                   "GPTQ: round those columns first whose inputs are largest: size (over all "
                   "groups, with scales set before), group (the groups with the largest, and so "
                   "within each), off (from left to right)")
      ->check(CLI::IsMember({"size", "group", "off"}))
      ->capture_default_str();
  command
      ->add_option(
          "--refinements", o->refinements,
          "GPTQ: rounds in which scales and codes are fitted once more, each to the others")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command->add_flag("--one-pass", o->one_pass,
                    "Calibrate all matrices of a layer at once, rather than each with those before "
                    "it quantised: faster, and a little worse");
  command->add_flag(
      "--match-source", o->match_source,
      "GPTQ: aim at the outputs that a matrix has in the source model, from its inputs "
      "there, so that it makes up for what the layers before it have lost: better, "
      "and the layers run on the text twice");
  command
      ->add_option("--scale-search", o->scale_search,
                   "Try smaller scales than the range needs: on, off, auto (with gptq)")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  command
      ->add_option("--min-inputs", o->min_inputs,
                   "An expert that calibration shows fewer inputs than this share of its width is "
                   "rounded to nearest")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--recipe", o->recipe,
                   "MODULES=FORMAT, any number of times: a kind (attention, deltanet, mlp, "
                   "experts, shared_expert, router, gates, per_layer, embedding, head, mtp) or "
                   "a module's name with * for any text; keep, w4a16, w8a8, w4g32, w8c, ...")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--keep", o->keep, "MODULES that are to stay as they are; after --recipe")
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--quantize-head", o->head, "The embedding and the head as well");
  command
      ->add_option("--format", o->format,
                   "Of the files; auto: compressed-tensors, or gguf if OUT or --scheme say so")
      ->check(CLI::IsMember({"auto", "compressed-tensors", "gptq", "gguf"}))
      ->capture_default_str();
  command->add_flag("--split-experts", o->split_experts,
                    "Write stacked experts one by one, as some programs want them");
  command->add_option("--shard-size", o->shard_gigabytes, "Most GB in one file")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  command->add_flag("--json", o->json, "Print the result as JSON");
  command->add_option("-t,--threads", o->num_threads, "Threads (0: one per processor)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command
      ->add_option("--device", o->device,
                   "Where the calibration and GPTQ compute; with cuda, a layer at a time is there")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--compute", o->compute,
                   "Rounding of the inputs of the layers' products during calibration: f32 (none), "
                   "bf16, auto (bf16 with --device cuda)")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--load-format", o->load_format,
                   "auto, or dummy: random weights of the config's shapes, and random tokens, for "
                   "speed measurements")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  command->add_option("--dummy-seed", o->dummy_seed, "Seed of dummy weights")
      ->capture_default_str();
  o->memory.add_to(*command);
  command->add_option("--isa", o->isa, "Force the CPU kernels of an instruction set")
      ->check(CLI::IsMember({"portable", "avx2", "avx512"}));
  command->footer(
      "An interrupted run leaves OUT.quantizing; the same command goes on from there.\n"
      "Examples:\n"
      "  braid quantize demo:gemma4 -o gemma4-w4 --scheme w4a16\n"
      "  braid quantize ./model -o model-w8 --scheme w8a8 --kv int8-static\n"
      "  braid quantize ./model -o model.gguf --scheme q4_k\n"
      "  braid quantize ./model -o model-w4 --group-size 32 --recipe shared_expert=w8a8");
  command->callback([o] { run_quantize(*o); });
}

}  // namespace braid

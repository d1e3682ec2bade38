#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/command.h"
#include "apps/command_line.h"
#include "apps/device_options.h"
#include "apps/eval_input.h"
#include "apps/eval_output.h"
#include "apps/memory_options.h"
#include "apps/progress_bar.h"
#include "apps/strict_json.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/log.h"
#include "benchmark/environment.h"
#include "evaluate/eval_report.h"

namespace braid {
namespace {

struct EvalOptions {
  DeviceOptions device;
  MemoryOptions memory;
  std::vector<std::string> texts;
  std::vector<std::string> tasks;
  std::string field = "text";
  std::vector<int64_t> buckets;
  int64_t max_tokens = 0;
  bool no_bos = false;
  std::string reference;
  std::string reference_compute = "auto";
  std::string reference_kv = "auto";
  std::optional<double> max_delta_nll;
  int64_t num_worst = 10;
  std::string per_token;
  int64_t max_sequences = 0;
  int64_t batch_tokens = 0;
  bool json = false;
  std::string output;
  std::string html;

  bool has_reference() const { return !reference.empty(); }
  DeviceOptions reference_device() const {
    DeviceOptions options = device;
    options.model = reference;
    options.compute = reference_compute;
    options.kv_dtype = reference_kv;
    return options;
  }
};

void check(const EvalOptions& options) {
  if (options.texts.empty() && options.tasks.empty()) {
    throw UsageError("nothing to evaluate: give --text FILE or --tasks FILE");
  }
  if (options.max_delta_nll && (!options.has_reference() || options.texts.empty())) {
    throw UsageError("--max-delta-nll needs --reference and --text");
  }
  if (!options.per_token.empty() && options.texts.empty()) {
    throw UsageError("--per-token needs --text");
  }
}

// Time left by the rate so far.
class Progress {
 public:
  explicit Progress(int64_t total, std::string what) : total_(total), what_(std::move(what)) {}

  void add(int64_t count) {
    done_ = std::min(done_ + count, total_);
    const auto now = Clock::now();
    if (now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double left = seconds / static_cast<double>(std::max<int64_t>(done_, 1)) *
                        static_cast<double>(total_ - done_);
    bar_.show(done_, total_, left, what_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  ProgressBar bar_;
  int64_t total_, done_ = 0;
  std::string what_;
  Clock::time_point begin_ = Clock::now(), shown_;
};

class Evaluation {
 public:
  Evaluation(const EvalOptions& options, const CLI::App& command) : options_(options) {
    for (const std::string& path : options.tasks) task_files_.push_back(read_task_file(path));
    for (const std::string& path : options.texts) {
      for (TextDocument& document : read_documents(path, options.field)) {
        texts_.push_back(std::move(document));
      }
    }
    if (options.memory.wanted()) plan_memory();
    loaded_.emplace(options.device.load());
    spdlog::info("{}", to_string(loaded_->model().load_report()));
    loaded_->tokenizer();
    report_.model = loaded_->origin();
    if (options.has_reference()) {
      reference_.emplace(options.reference_device().load());
      reference_->tokenizer();
      report_.reference = reference_->origin();
    }
    add_facts(command);
  }

  const std::optional<MemoryPlan>& memory() const { return memory_; }
  Device device() const { return loaded_->device(); }

  EvalReport run() {
    if (!texts_.empty()) run_texts();
    for (const TaskFile& task : task_files_) run_task(task);
    for (NamedError& layer : read_layer_errors(loaded_->origin())) {
      report_.layers.push_back({std::move(layer.name), layer.error});
    }
    return std::move(report_);
  }

 private:
  void add_facts(const CLI::App& command) {
    const Environment environment = current_environment(command_line("braid", command));
    const auto add = [&](const char* name, const std::string& value) {
      report_.facts.emplace_back(name, value);
    };
    add("device", options_.device.device);
    add("compute", options_.device.compute);
    add("kv", options_.device.kv(*loaded_).name);
    if (reference_) {
      add("reference compute", options_.reference_compute);
      add("reference kv", options_.reference_device().kv(*reference_).name);
    }
    add("processor", environment.cpu);
    add("isa", environment.isa);
    add("commit", environment.commit);
    add("date", environment.date);
    add("command", environment.command);
  }

  static ScorerModel scorer_model(const LoadedModel& loaded, const DeviceOptions& device,
                                  int64_t workspace_bytes) {
    const KvStorage kv = device.kv(loaded);
    return {.loaded = &loaded,
            .precision = device.precision(),
            .deterministic = device.deterministic,
            .kv_dtype = kv.dtype,
            .dynamic_kv_scales = kv.dynamic_scales,
            .workspace_bytes = workspace_bytes};
  }

  // Most tokens that a task's items may need: a token is at least a byte.
  int64_t longest_item() const {
    int64_t longest = 0;
    for (const TaskFile& task : task_files_) {
      if (task.choices) {
        for (const ChoiceItem& item : *task.choices) {
          for (const std::string& choice : item.choices) {
            longest =
                std::max(longest, std::ssize(item.query) + std::ssize(item.delimiter + choice) + 1);
          }
        }
      } else {
        for (const GenerationItem& item : *task.generation) {
          longest = std::max(longest, std::ssize(item.prompt) + 1 + item.max_new_tokens);
        }
      }
    }
    return longest;
  }

  // Plans for the longest of all sequences, with both models at work; throws Error if that does
  // not fit the budget.
  void plan_memory() {
    const LoadedModel described = options_.memory.describe(options_.device);
    std::optional<LoadedModel> reference;
    if (options_.has_reference()) {
      reference.emplace(options_.memory.describe(options_.reference_device()));
    }
    const auto device = device_memory(described.device(), num_threads_of(options_.device));
    int64_t text_bytes = 0;
    for (const TextDocument& text : texts_) text_bytes += std::ssize(text.text);
    int64_t limit = described.model().max_positions();
    if (reference) limit = std::min(limit, reference->model().max_positions());
    int64_t longest = longest_item();
    if (!texts_.empty()) {
      const std::vector<int64_t> buckets = usable_buckets(limit);
      longest = std::max(longest, *std::max_element(buckets.begin(), buckets.end()));
    }
    longest = std::clamp<int64_t>(longest, 2, limit);
    const auto plan = [&](const MemoryShape& shape) {
      MemoryPlan result = base_plan(*device, described);
      if (described.device().is_cpu()) {
        result.add(MemoryKind::kFixed, "texts and scores", kBytesPerTextByte * text_bytes);
      }
      const auto add = [&](const std::string& name, const LoadedModel& loaded,
                           const DeviceOptions& options, int64_t& workspace) {
        ScorerOptions scorer{.model = scorer_model(loaded, options, 0),
                             .max_sequence_tokens = shape.context,
                             .max_sequences = options_.max_sequences,
                             .batch_tokens = options_.batch_tokens};
        CacheOptions cache = scorer_cache(scorer, scorer.model);
        StepSize step = scorer_step(scorer, scorer.model);
        workspace = device->workspace_bytes(loaded.model(), step);
        if (generates()) {
          const EngineOptions engine = engine_options(options, loaded, shape.context);
          const CacheOptions other = cache_options(loaded.model(), engine, shape.context);
          const StepSize engine_step{.tokens = other.max_step_tokens,
                                     .logits_rows = other.max_sequences,
                                     .edited_rows = other.max_sequences,
                                     .sequences = other.max_sequences,
                                     .precision = options.precision()};
          cache.max_tokens = std::max(cache.max_tokens, other.max_tokens);
          cache.max_sequences = std::max(cache.max_sequences, other.max_sequences);
          cache.max_step_tokens = std::max(cache.max_step_tokens, other.max_step_tokens);
          const int64_t bytes = device->workspace_bytes(loaded.model(), engine_step);
          if (bytes > workspace) step = engine_step;
          workspace = std::max(workspace, bytes);
        }
        add_model(result, name, loaded.model(), planned_weight_bytes(options, loaded), cache, step,
                  *device);
      };
      add("", described, options_.device, workspace_bytes_);
      if (reference) {
        add("reference: ", *reference, options_.reference_device(), reference_workspace_bytes_);
      }
      return result;
    };
    const int64_t budget = options_.memory.budget_bytes();
    enforce_budget(budget, {.context = longest}, plan);
    memory_ = plan({.context = longest});
  }

  bool generates() const {
    return std::any_of(task_files_.begin(), task_files_.end(),
                       [](const TaskFile& task) { return task.generation.has_value(); });
  }

  int64_t workspace_of(const LoadedModel& loaded) const {
    return &loaded == &*loaded_ ? workspace_bytes_ : reference_workspace_bytes_;
  }

  EngineOptions engine_options(const DeviceOptions& device, const LoadedModel& loaded,
                               int64_t max_context) const {
    const KvStorage kv = device.kv(loaded);
    constexpr int64_t kSequences = 8;
    EngineOptions engine{.threads = options_.device.thread_pool(),
                         .precision = device.precision(),
                         .deterministic = device.deterministic,
                         .kv_dtype = kv.dtype,
                         .dynamic_kv_scales = kv.dynamic_scales,
                         .max_context = max_context};
    engine.max_sequences = options_.max_sequences > 0 ? options_.max_sequences : kSequences;
    if (options_.batch_tokens > 0) engine.batch_tokens = options_.batch_tokens;
    return engine;
  }

  // Of the models that are given.
  int64_t max_positions() const {
    const int64_t own = loaded_->model().max_positions();
    return reference_ ? std::min(own, reference_->model().max_positions()) : own;
  }

  bool add_bos() const { return loaded_->tokenizer().adds_bos() && !options_.no_bos; }

  LikelihoodScorer make_scorer(const ScorerModel& model, const ScorerModel& reference,
                               int64_t max_sequence_tokens) const {
    return LikelihoodScorer({.model = model,
                             .reference = reference,
                             .threads = options_.device.thread_pool(),
                             .max_sequence_tokens = max_sequence_tokens,
                             .max_sequences = options_.max_sequences,
                             .batch_tokens = options_.batch_tokens});
  }

  NllOptions nll_options() const {
    NllOptions options;
    options.max_tokens = options_.max_tokens;
    options.num_worst = static_cast<size_t>(options_.num_worst);
    options.keep_tokens = !options_.per_token.empty();
    if (add_bos()) options.bos = loaded_->tokenizer().bos_id();
    options.buckets = usable_buckets(max_positions());
    return options;
  }

  // Those asked for, which must not exceed the context, or as many of the usual ones as it holds.
  std::vector<int64_t> usable_buckets(int64_t limit) const {
    for (const int64_t length : options_.buckets) {
      if (length <= limit) continue;
      throw UsageError("--buckets {}: the context is {} tokens", length, limit);
    }
    if (!options_.buckets.empty()) return options_.buckets;
    std::vector<int64_t> buckets = NllOptions().buckets;
    std::erase_if(buckets, [&](int64_t length) { return length > limit; });
    if (buckets.empty()) buckets = {limit};
    return buckets;
  }

  std::vector<Document> encode_texts() const {
    std::vector<Document> documents;
    for (const TextDocument& text : texts_) {
      Document document{.name = text.name, .ids = loaded_->tokenizer().encode(text.text)};
      if (reference_ && reference_->tokenizer().encode(text.text) != document.ids) {
        throw Error(
            "{}: {} and the reference {} make different tokens of it; they cannot be "
            "compared token by token",
            text.name, loaded_->origin(), reference_->origin());
      }
      // Chunks begin with BOS anyway.
      const auto bos = loaded_->tokenizer().bos_id();
      if (add_bos() && !document.ids.empty() && document.ids.front() == bos) {
        document.ids.erase(document.ids.begin());
      }
      documents.push_back(std::move(document));
    }
    return documents;
  }

  void run_texts() {
    const NllOptions nll = nll_options();
    const std::vector<Document> documents = encode_texts();
    size_t longest = 2;
    for (const Document& document : documents) longest = std::max(longest, document.ids.size() + 1);
    const int64_t largest = *std::max_element(nll.buckets.begin(), nll.buckets.end());
    LikelihoodScorer scorer = make_scorer(
        scorer_model(*loaded_, options_.device, workspace_bytes_),
        reference_
            ? scorer_model(*reference_, options_.reference_device(), reference_workspace_bytes_)
            : ScorerModel{},
        std::min(largest, static_cast<int64_t>(longest)));
    Progress progress(num_nll_tokens(documents, nll), "tokens");
    report_.nll = evaluate_nll(scorer, documents, loaded_->tokenizer(), nll,
                               [&](int64_t count) { progress.add(count); });
    for (const ScoredToken& token : report_.nll->worst) {
      report_.worst.push_back(describe(token, documents));
    }
    if (!options_.per_token.empty()) write_tokens(documents);
  }

  WorstPlace describe(const ScoredToken& token, std::span<const Document> documents) const {
    constexpr int64_t kContextTokens = 12;
    const Tokenizer& tokenizer = loaded_->tokenizer();
    const Document& document = documents[token.document];
    const int64_t begin = std::max<int64_t>(0, token.offset - kContextTokens);
    const auto text = [&](std::span<const int32_t> ids) {
      std::string shown = tokenizer.decode(ids);
      std::replace(shown.begin(), shown.end(), '\n', ' ');
      return shown;
    };
    const auto one = [&](int32_t id) {
      return utf8_repair(tokenizer.token_bytes(id, /*render_special=*/true));
    };
    WorstPlace place{.token = token, .document = document.name};
    place.context =
        text(std::span(document.ids)
                 .subspan(static_cast<size_t>(begin), static_cast<size_t>(token.offset - begin)));
    place.target = one(token.token);
    place.top = one(token.score.top);
    place.reference_top = one(token.score.reference_top);
    for (std::string* each : {&place.target, &place.top, &place.reference_top}) {
      std::replace(each->begin(), each->end(), '\n', ' ');
    }
    return place;
  }

  void write_tokens(std::span<const Document> documents) {
    std::string lines;
    for (const ScoredToken& token : report_.nll->tokens) {
      nlohmann::ordered_json line = {{"document", documents[token.document].name},
                                     {"bucket", bucket_name(token.bucket)},
                                     {"offset", token.offset},
                                     {"position", token.position},
                                     {"id", token.token},
                                     {"nll", token.score.nll}};
      if (reference_) {
        line["reference_nll"] = token.score.reference_nll;
        line["kl"] = token.score.kl;
      }
      lines += dump_json(line) + "\n";
    }
    write_text_file(options_.per_token, lines);
    report_.nll->tokens.clear();
  }

  void run_task(const TaskFile& file) {
    TaskResult result{.name = file.name};
    if (file.choices) {
      result.choice_items = file.choices;
      result.choices = run_choices(*loaded_, options_.device, file);
      if (reference_) {
        result.reference_choices = run_choices(*reference_, options_.reference_device(), file);
      }
    } else {
      result.generation_items = file.generation;
      result.generation = run_generation(*loaded_, options_.device, file);
      if (reference_) {
        result.reference_generation =
            run_generation(*reference_, options_.reference_device(), file);
      }
    }
    report_.tasks.push_back(std::move(result));
  }

  ChoiceScore run_choices(const LoadedModel& loaded, const DeviceOptions& device,
                          const TaskFile& file) const {
    const bool bos = loaded.tokenizer().adds_bos() && !options_.no_bos;
    int64_t longest = 2, total = 0;
    for (const ChoiceItem& item : *file.choices) {
      const std::string rest = item.query + item.delimiter;
      for (const std::string& choice : item.choices) {
        const auto size = std::ssize(loaded.tokenizer().encode(rest + choice, {.add_bos = bos}));
        longest = std::max<int64_t>(longest, size);
        total += size - 1;
      }
    }
    LikelihoodScorer scorer = make_scorer(scorer_model(loaded, device, workspace_of(loaded)), {},
                                          std::min(longest, loaded.model().max_positions()));
    Progress progress(total, file.name);
    return score_choices(scorer, loaded.tokenizer(), *file.choices, file.path, bos,
                         [&](int64_t count) { progress.add(count); });
  }

  GenerationScore run_generation(const LoadedModel& loaded, const DeviceOptions& device,
                                 const TaskFile& file) const {
    const bool bos = loaded.tokenizer().adds_bos() && !options_.no_bos;
    int64_t longest = 1;
    for (const GenerationItem& item : *file.generation) {
      const auto size = std::ssize(loaded.tokenizer().encode(item.prompt, {.add_bos = bos}));
      longest = std::max(longest, size + item.max_new_tokens);
    }
    EngineOptions settings =
        engine_options(device, loaded, std::min(longest, loaded.model().max_positions()));
    settings.workspace_bytes = workspace_of(loaded);
    Engine engine(loaded, settings);
    Progress progress(std::ssize(*file.generation), file.name);
    return score_generation(engine, loaded, *file.generation, file.path, bos,
                            [&](int64_t) { progress.add(1); });
  }

  // Of a text: its characters, tokens and their scores.
  static constexpr int64_t kBytesPerTextByte = 128;

  const EvalOptions& options_;
  int64_t workspace_bytes_ = 0, reference_workspace_bytes_ = 0;  // 0: no limit
  std::vector<TaskFile> task_files_;
  std::vector<TextDocument> texts_;
  std::optional<MemoryPlan> memory_;
  std::optional<LoadedModel> loaded_, reference_;
  EvalReport report_;
};

void check_delta(const EvalReport& report, double limit) {
  const NllBucket* worst = nullptr;
  for (const NllBucket& bucket : report.nll->buckets) {
    if (bucket.num_chunks == 0) continue;
    if (worst == nullptr || bucket.delta.mean > worst->delta.mean) worst = &bucket;
  }
  if (worst == nullptr || worst->delta.mean <= limit) return;
  throw Error("ΔNLL of length {} is {:.6f}, above --max-delta-nll {}", bucket_name(worst->length),
              worst->delta.mean, limit);
}

void run_eval(const EvalOptions& options, const CLI::App& command) {
  options.device.apply();
  if (options.has_reference()) options.reference_device().apply();
  check(options);
  Evaluation evaluation(options, command);
  const EvalReport report = evaluation.run();
  nlohmann::ordered_json json = to_json(report);
  if (evaluation.memory()) {
    json["memory"] = memory_json(*evaluation.memory(), options.memory.budget_bytes());
  }
  const std::string as_json =
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (!options.output.empty()) write_text_file(options.output, as_json);
  if (!options.html.empty()) write_text_file(options.html, to_html(report));
  write_out(options.json ? as_json : eval_tables(report));
  if (evaluation.memory()) report_peak(*evaluation.memory(), evaluation.device());
  if (options.max_delta_nll) check_delta(report, *options.max_delta_nll);
}

}  // namespace

void add_eval_command(CLI::App& app) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand(
      "eval", "Measure a model's quality: loss on text, by itself or beside a reference; tasks");
  options->device.add_model(*command);
  command
      ->add_option("--text", options->texts,
                   "Text files, each a document, or .jsonl files, a document a line (-: standard "
                   "input)")
      ->option_text("FILE ...");
  command->add_option("--field", options->field, "Field of .jsonl lines that holds the text")
      ->capture_default_str();
  command
      ->add_option("--tasks", options->tasks,
                   ".jsonl files of questions: query, choices, gold; or prompt, answer")
      ->option_text("FILE ...");
  command
      ->add_option("--buckets", options->buckets,
                   "Lengths in tokens, with commas: the text is cut into chunks of each (default: "
                   "128,256,512,1024,2048 as far as the context goes)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  command->add_option("--max-tokens", options->max_tokens, "Most tokens of text to use (0: all)")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--no-bos", options->no_bos,
                    "Put no BOS before chunks and prompts, even if the tokenizer wants one");
  command
      ->add_option("--reference", options->reference,
                   "Another model, such as the unquantised one, to compare with token by token")
      ->option_text("MODEL");
  command->add_option("--reference-compute", options->reference_compute, "--compute of that model")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "int8"}))
      ->capture_default_str();
  command->add_option("--reference-kv", options->reference_kv, "--kv of that model")
      ->check(CLI::IsMember(kv_choices()))
      ->capture_default_str();
  command
      ->add_option("--max-delta-nll", options->max_delta_nll,
                   "Exit with 1 if the loss of any length exceeds the reference's by more (nats a "
                   "token)")
      ->option_text("X");
  command->add_option("--worst", options->num_worst, "How many of the worst places to show")
      ->check(CLI::Range(0, 10000))
      ->capture_default_str();
  command->add_option("--per-token", options->per_token, "Also write each token's loss, as JSONL")
      ->option_text("FILE");
  command
      ->add_option("--batch", options->max_sequences,
                   "Most sequences side by side (0: as many as fill a step)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command
      ->add_option("--batch-tokens", options->batch_tokens,
                   "Most tokens in one forward pass (0: by the size of their logits)")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->add_option("-o,--output", options->output, "Also write the JSON to a file")
      ->option_text("FILE");
  command->add_option("--html", options->html, "Also write a page with plots")->option_text("FILE");
  options->device.add_to(*command);
  options->memory.add_to(*command);
  command->footer(
      "Examples:\n"
      "  braid eval ./model --text book.txt\n"
      "  braid eval ./model-w4 --reference ./model --text book.txt --max-delta-nll 0.02 \\\n"
      "    --html report.html\n"
      "  braid eval ./model --kv int8 --reference ./model --text texts.jsonl --buckets 512\n"
      "  braid eval ./model --tasks questions.jsonl --json");
  command->callback([options, command] { run_eval(*options, *command); });
}

}  // namespace braid

#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/batch_run.h"
#include "apps/chat_prompt.h"
#include "apps/chat_session.h"
#include "apps/command.h"
#include "apps/device_options.h"
#include "apps/interrupt.h"
#include "apps/memory_options.h"
#include "apps/profile_options.h"
#include "apps/sampling_options.h"
#include "apps/speculation_options.h"
#include "apps/strict_json.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/draft_plan.h"

namespace braid {
namespace {

constexpr const char* kDefaultModel = "demo:gemma4";
constexpr const char* kDemoPrompt = "It was a cold morning, and the";
constexpr int64_t kDefaultCompletionTokens = 128;

std::string is_token_limit(const std::string& text) {
  const bool bad = text.starts_with("-") ? text != "-1" : text.find_first_not_of('0') == text.npos;
  return bad ? "expected 1 or more, or -1 for no limit" : "";
}

struct RunOptionsCli {
  DeviceOptions device;
  SamplingOptions sampling;
  SpeculationCli speculation;
  ProfileOptions profile;
  MemoryOptions memory;
  std::optional<std::string> prompt;
  std::string prompt_file;
  bool chat = false;
  std::string system;
  std::string chat_template_file;
  std::string thinking;
  std::optional<int64_t> max_tokens;
  int64_t context = 0;
  int64_t max_sequences = 8;
  int64_t batch_tokens = 512;
  std::string prompts;
  std::string output;
  bool resume = false;
  bool json = false;
};

std::optional<std::string> find_prompt(const RunOptionsCli& options) {
  if (options.prompt) return options.prompt;
  if (!options.prompt_file.empty()) return read_input(options.prompt_file);
  if (options.chat || !options.chat_template_file.empty()) return std::nullopt;
  if (options.device.model.starts_with("demo:")) return kDemoPrompt;
  if (isatty(STDIN_FILENO)) return std::nullopt;
  return read_input("-");
}

// What contradicts or would be ignored is refused before anything is loaded.
void check(const RunOptionsCli& options) {
  const bool batch = !options.prompts.empty();
  const bool may_chat = options.chat || !options.chat_template_file.empty() || batch;
  if (!batch && !options.output.empty()) throw UsageError("--output needs --prompts");
  if (options.resume && options.output.empty()) throw UsageError("--resume needs --output");
  if (!options.system.empty() && !may_chat) throw UsageError("--system needs --chat");
  if (!options.thinking.empty() && !may_chat) throw UsageError("--thinking needs --chat");
  options.sampling.check();
  options.speculation.check();
  options.profile.check();
  options.memory.budget_bytes();
}

// Of everything but the drafter and what the model decides.
EngineOptions engine_options(const RunOptionsCli& options, bool interactive) {
  return {.threads = options.device.thread_pool(),
          .precision = options.device.precision(),
          .deterministic = options.device.deterministic,
          .max_context = options.context,
          .max_sequences = options.prompts.empty() ? 1 : options.max_sequences,
          .batch_tokens = options.batch_tokens,
          .reuse_last = interactive,
          .profiler = options.profile.profiler()};
}

void settle_kv(const RunOptionsCli& options, const LoadedModel& loaded, EngineOptions& engine) {
  const KvStorage kv = options.device.kv(loaded);
  engine.kv_dtype = kv.dtype;
  engine.dynamic_kv_scales = kv.dynamic_scales;
}

// With --offload, unless another is asked for.
constexpr int64_t kOffloadContext = 4096;

// Settles the context and the workspace within the budget; throws Error if nothing fits.
MemoryPlan plan_memory(const RunOptionsCli& options, EngineOptions& engine) {
  const int64_t budget = options.memory.budget_bytes();
  const LoadedModel described = options.memory.describe(options.device);
  const Model& model = described.model();
  settle_kv(options, described, engine);
  const auto device = device_memory(described.device(), num_threads_of(options.device));
  const DraftPlan draft(parse_drafter(options.speculation.drafter), described);
  const int64_t drafts =
      options.speculation.drafter == "off" ? 0 : options.speculation.draft_tokens;
  const auto shaped = [&](const MemoryShape& shape) {
    EngineOptions result = engine;
    result.max_sequences = shape.sequences;
    result.speculation.max_drafts = drafts;
    return result;
  };
  const auto cache_of = [&](const MemoryShape& shape) {
    CacheOptions cache = cache_options(model, shaped(shape), shape.context);
    if (drafts > 0) cache.max_logged_tokens = std::min(drafts + 1, cache.max_step_tokens);
    return cache;
  };
  const auto step_of = [&](const MemoryShape& shape, const CacheOptions& cache) {
    const int64_t rows = std::min(shape.sequences * (drafts + 1), cache.max_step_tokens);
    return StepSize{.tokens = cache.max_step_tokens,
                    .logits_rows = rows,
                    .edited_rows = rows,
                    .sequences = shape.sequences,
                    .precision = engine.precision};
  };
  const PlanWithWeights plan_with = [&](const MemoryShape& shape, const WeightBytes& weights) {
    const CacheOptions cache = cache_of(shape);
    MemoryPlan result = base_plan(*device, described);
    add_model(result, "", model, weights, cache, step_of(shape, cache), *device);
    draft.add(result, drafter_sizes(shaped(shape), cache), *device);
    return result;
  };
  const MemoryPlanFunction plan = [&](const MemoryShape& shape) {
    return plan_weights(options.memory, options.device, described, shape, plan_with);
  };
  MemoryShape shape{resolve_context(model, engine.max_context), engine.max_sequences};
  if (engine.max_context == 0) {
    // Rather a shorter context than layers on the host.
    const WeightBytes weights = planned_weight_bytes(options.device, described);
    auto context = fitting_context(
        budget, shape, [&](const MemoryShape& shorter) { return plan_with(shorter, weights); });
    if (!context && options.memory.offloads()) {
      context = std::min(shape.context, kOffloadContext);
    }
    if (context && *context < shape.context) {
      spdlog::info("context of {} tokens: as many as the memory budget has room for", *context);
      shape.context = *context;
    }
  }
  enforce_budget(budget, shape, plan);
  engine.max_context = shape.context;
  MemoryPlan settled = plan(shape);
  engine.workspace_bytes = device->workspace_bytes(model, step_of(shape, cache_of(shape)));
  return settled;
}

void print_stats(const Engine& engine, const SpeculationCli& speculation) {
  const EngineStats& stats = engine.stats();
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? fmt::format("{:.1f} tokens/s", static_cast<double>(tokens) / seconds)
                       : std::string("–");
  };
  std::string line = fmt::format("prompt {} tokens, {}", stats.prompt_tokens,
                                 rate(stats.prompt_tokens, stats.prefill_seconds));
  if (stats.reused_tokens > 0) line += fmt::format(" ({} reused)", stats.reused_tokens);
  line += fmt::format("; generated {} tokens, {}", stats.generated_tokens,
                      rate(stats.decode_tokens, stats.decode_seconds));
  spdlog::info("{}", line);
  if (const auto drafts = engine.speculation_stats()) {
    spdlog::info("{}", to_string(*drafts, speculation.drafter));
  }
}

std::optional<bool> thinking_switch(const RunOptionsCli& options) {
  if (options.thinking.empty()) return std::nullopt;
  return options.thinking == "on";
}

nlohmann::ordered_json to_json(const LoadedModel& loaded, const std::string& prompt,
                               const std::vector<int32_t>& prompt_ids) {
  nlohmann::ordered_json json;
  json["model"] = loaded.origin();
  json["prompt"] = prompt;
  json["prompt_ids"] = prompt_ids;
  return json;
}

// One prompt: it is printed (unless in a chat) and the text streams after it, or one JSON object
// follows at the end.
void run_once(const RunOptionsCli& options, Engine& engine, const LoadedModel& loaded,
              const ChatSettings& settings, const std::optional<MemoryPlan>& memory,
              const std::string& prompt) {
  GenerationRequest request;
  request.prompt = encode_turn(loaded, settings, prompt);
  request.sampling = options.sampling.params(loaded.generation());
  request.stop = options.sampling.stop(loaded.generation());
  request.max_new_tokens =
      options.max_tokens.value_or(settings.chat != nullptr ? -1 : kDefaultCompletionTokens);
  nlohmann::ordered_json json = to_json(loaded, prompt, request.prompt);
  const size_t prompt_tokens = request.prompt.size();
  const RequestId id = engine.submit(std::move(request));

  if (!options.json && settings.chat == nullptr) write_out(prompt);
  InterruptGuard interrupt;
  std::string text;
  std::vector<int32_t> ids;
  TokenEvent last;
  while (!last.finish) {
    if (interrupt.interrupted()) engine.cancel(id);
    for (TokenEvent& event : engine.step()) {
      text += event.text;
      if (event.token) ids.push_back(event.token->token);
      if (!options.json) write_out(event.text);
      last = std::move(event);
    }
  }
  if (options.json) {
    const EngineStats& stats = engine.stats();
    json["text"] = text;
    json["ids"] = ids;
    json["finish_reason"] = finish_reason_name(*last.finish);
    if (!last.error.empty()) json["error"] = last.error;
    json["usage"] = {{"prompt_tokens", prompt_tokens}, {"completion_tokens", ids.size()}};
    json["timings"] = {{"prefill_seconds", stats.prefill_seconds},
                       {"decode_seconds", stats.decode_seconds},
                       {"decode_tokens", stats.decode_tokens}};
    if (const auto drafts = engine.speculation_stats()) {
      json["speculation"] = to_json(*drafts, options.speculation);
    }
    if (memory) json["memory"] = memory_json(*memory, options.memory.budget_bytes());
    write_out(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  write_out("\n");
  print_stats(engine, options.speculation);
  if (last.finish == FinishReason::kError) throw Error("{}", last.error);
  if (last.finish == FinishReason::kCancelled) throw Error("interrupted");
}

void run(const RunOptionsCli& options) {
  check(options);
  options.device.apply();
  const bool batch = !options.prompts.empty();
  std::optional<BatchFiles> files;
  if (batch) files.emplace(options.prompts, options.output);
  const std::optional<std::string> prompt = batch ? std::nullopt : find_prompt(options);
  const bool interactive = !batch && !prompt;
  if (interactive && options.json) throw UsageError("--json needs a prompt (-p or -f)");

  options.speculation.check_with(options.device);
  EngineOptions engine_settings = engine_options(options, interactive);
  std::optional<MemoryPlan> memory;
  if (options.memory.wanted()) memory = plan_memory(options, engine_settings);
  const LoadedModel loaded = options.device.load(
      /*with_tokenizer=*/true, /*read_ahead=*/true,
      memory ? memory->layers_on_host : std::vector<int64_t>());
  spdlog::info("{}: {}", loaded.origin(), to_string(loaded.model().load_report()));
  settle_kv(options, loaded, engine_settings);
  std::optional<ChatTemplate> own_template;
  if (!options.chat_template_file.empty()) {
    own_template.emplace(loaded.make_chat_template(read_input(options.chat_template_file),
                                                   options.chat_template_file));
  }
  if (interactive && !own_template && !loaded.has_chat_template() && !options.chat) {
    throw Error("{}: no prompt, and no chat template to talk with; give a text with -p",
                loaded.origin());
  }
  const bool uses_template = options.chat || interactive || own_template;
  const ChatSettings settings{.chat = own_template    ? &*own_template
                                      : uses_template ? &loaded.chat_template()
                                                      : nullptr,
                              .system = options.system,
                              .thinking = thinking_switch(options)};
  check_chat_settings(settings);
  const SamplingParams sampling = options.sampling.params(loaded.generation());
  const StopConditions stop = options.sampling.stop(loaded.generation());

  engine_settings.speculation = options.speculation.load(loaded);
  Engine engine(loaded, engine_settings);
  if (batch) {
    const bool complete =
        run_batch(engine, loaded, *files,
                  {.chat = settings,
                   .sampling = sampling,
                   .stop = stop,
                   .max_new_tokens = options.max_tokens.value_or(kDefaultCompletionTokens)},
                  options.resume);
    print_stats(engine, options.speculation);
    options.profile.report();
    if (memory) report_peak(*memory, loaded.device());
    if (!complete) throw Error("{}: not every line was generated; see the output", files->origin);
  } else if (interactive) {
    run_chat_session(engine, loaded,
                     {.settings = settings,
                      .sampling = sampling,
                      .stop = stop,
                      .max_new_tokens = options.max_tokens.value_or(-1)});
    print_stats(engine, options.speculation);
    options.profile.report();
  } else {
    run_once(options, engine, loaded, settings, memory, *prompt);
    options.profile.report();
  }
  if (memory && !batch) report_peak(*memory, loaded.device());
}

}  // namespace

void add_run_command(CLI::App& app) {
  auto options = std::make_shared<RunOptionsCli>();
  CLI::App* command =
      app.add_subcommand("run", "Generate text: one prompt, a conversation, or a file of prompts");
  options->device.add_model(*command, kDefaultModel);
  auto* prompt = command->add_option(
      "-p,--prompt", options->prompt,
      "Text to continue, or, with --chat, to answer (default: standard input; demo "
      "models: a sentence)");
  command
      ->add_option("-f,--file", options->prompt_file,
                   "Read the prompt from a file (-: standard input)")
      ->excludes(prompt);
  auto* prompt_file = command->get_option("--file");
  prompt_file->option_text("FILE");
  command->add_flag("--chat,--conversation", options->chat,
                    "Apply the chat template; without a prompt: an interactive session");
  command->add_option("--system,--system-prompt", options->system, "System message (chat)");
  command->add_option("--chat-template", options->chat_template_file,
                      "Jinja file instead of the model's template; implies --chat");
  command->add_option("--thinking", options->thinking, "The template's enable_thinking switch")
      ->check(CLI::IsMember({"on", "off"}));
  command
      ->add_option("-n,--max-tokens,--n-predict,--max-new-tokens", options->max_tokens,
                   "Most tokens to generate (-1: until the context is full; default 128, chat -1)")
      ->check(is_token_limit);
  command
      ->add_option("-c,--ctx-size,--max-model-len", options->context,
                   "Tokens of context (0: the model's, at most 32768)")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--batch-tokens,--ubatch-size", options->batch_tokens,
                   "Most tokens in one forward pass")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command
      ->add_option("--prompts", options->prompts,
                   "JSONL file (-: standard input): {\"prompt\": …}, {\"messages\": …} or "
                   "{\"ids\": …} a line; blank lines are passed over")
      ->excludes(prompt)
      ->excludes(prompt_file)
      ->option_text("FILE");
  prompt->option_text("TEXT");
  command->add_option("-o,--output", options->output,
                      "JSONL file for the results of --prompts (default: standard output)");
  command->add_flag("--resume", options->resume,
                    "Keep the results that --output holds and go on after them");
  command
      ->add_option("--max-sequences,--parallel", options->max_sequences,
                   "Prompts computed at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  options->sampling.add_to(*command);
  options->speculation.add_to(*command);
  options->device.add_to(*command);
  options->memory.add_to(*command, /*offload=*/true);
  options->profile.add_to(*command);
  command->footer(
      "Examples:\n"
      "  braid run                                   the bundled model continues a sentence\n"
      "  braid run ./gemma-3-270m-it --chat          talk to a model folder\n"
      "  braid run ./gemma-3-270m-it --chat -p 'Why is the sky blue?' --temp 0.7 --top-p 0.95\n"
      "  braid run gemma-3-270m.gguf -p 'Once upon a time' -n 64 --temp 0\n"
      "  braid run ./model --prompts in.jsonl -o out.jsonl --max-sequences 16\n"
      "  braid run ./Qwen3-Next-80B-A3B-Instruct --chat --speculate mtp\n"
      "  braid run demo:gemma4 --speculate model:demo:gemma4-dense --draft-tokens 4 --temp 0\n"
      "A line of in.jsonl: {\"prompt\": \"Once\", \"max_tokens\": 32, \"temperature\": 0.5, "
      "\"id\": 7}\n"
      "Text goes to standard output, messages and rates to standard error. Exit codes: 0 done,\n"
      "1 input or run error, 2 bad arguments.");
  command->callback([options] { run(*options); });
}

}  // namespace braid

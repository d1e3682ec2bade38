#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/batch_run.h"
#include "apps/chat_session.h"
#include "apps/command.h"
#include "apps/device_options.h"
#include "apps/interrupt.h"
#include "apps/prompt.h"
#include "apps/sampling_options.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"

namespace braid {
namespace {

constexpr const char* kDefaultModel = "demo:gemma4";
constexpr const char* kDemoPrompt = "It was a cold morning, and the";
constexpr int64_t kDefaultCompletionTokens = 128;

struct RunOptionsCli {
  DeviceOptions device;
  SamplingOptions sampling;
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
  if (options.prompt_file == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  if (!options.prompt_file.empty()) return read_file(options.prompt_file);
  if (options.chat) return std::nullopt;
  if (options.device.model.starts_with("demo:")) return kDemoPrompt;
  if (isatty(STDIN_FILENO)) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

std::unique_ptr<ChatTemplate> load_chat_template(const RunOptionsCli& options,
                                                 const LoadedModel& loaded) {
  if (options.chat_template_file.empty()) return nullptr;
  const Tokenizer& tokenizer = loaded.tokenizer();
  const auto text = [&](std::optional<TokenId> id) {
    return id ? std::string(tokenizer.token_text(*id)) : std::string();
  };
  return std::make_unique<ChatTemplate>(read_file(options.chat_template_file),
                                        options.chat_template_file, text(tokenizer.bos_id()),
                                        text(tokenizer.eos_id()));
}

void print_stats(const EngineStats& stats) {
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
}

std::optional<bool> thinking_switch(const RunOptionsCli& options) {
  if (options.thinking.empty()) return std::nullopt;
  return options.thinking == "on";
}

// One prompt: the text streams to stdout, or one JSON object follows at the end.
void run_once(const RunOptionsCli& options, Engine& engine, const LoadedModel& loaded,
              const ChatTemplate* chat, const std::string& prompt) {
  GenerationRequest request;
  if (chat != nullptr) {
    ChatTemplateInputs inputs;
    if (!options.system.empty()) {
      inputs.messages.push_back({.role = "system", .content = options.system});
    }
    inputs.messages.push_back({.role = "user", .content = prompt});
    inputs.enable_thinking = thinking_switch(options);
    request.prompt = encode_chat(loaded, *chat, inputs);
  } else {
    request.prompt = encode_prompt(loaded, prompt);
  }
  request.sampling = options.sampling.params(loaded.generation());
  request.stop = options.sampling.stop(loaded.generation());
  request.max_new_tokens =
      options.max_tokens.value_or(chat != nullptr ? -1 : kDefaultCompletionTokens);
  const RequestId id = engine.submit(std::move(request));

  if (!options.json && chat == nullptr) std::fputs(prompt.c_str(), stdout);
  std::fflush(stdout);
  InterruptGuard interrupt;
  std::string text;
  std::vector<int32_t> ids;
  TokenEvent last;
  while (!last.finish) {
    if (interrupt.interrupted()) engine.cancel(id);
    for (TokenEvent& event : engine.step()) {
      text += event.text;
      if (event.token) ids.push_back(event.token->token);
      if (!options.json) {
        std::fputs(event.text.c_str(), stdout);
        std::fflush(stdout);
      }
      last = std::move(event);
    }
  }
  const EngineStats& stats = engine.stats();
  if (options.json) {
    nlohmann::ordered_json json;
    json["model"] = loaded.origin();
    json["prompt"] = prompt;
    json["text"] = text;
    json["ids"] = ids;
    json["finish_reason"] = finish_reason_name(*last.finish);
    json["usage"] = {{"prompt_tokens", stats.prompt_tokens}, {"completion_tokens", ids.size()}};
    json["timings"] = {{"prefill_seconds", stats.prefill_seconds},
                       {"decode_seconds", stats.decode_seconds},
                       {"decode_tokens", stats.decode_tokens}};
    std::puts(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::puts("");
  }
  std::fflush(stdout);  // before the statistics, which go to stderr
  print_stats(stats);
  if (last.finish == FinishReason::kError) throw Error("{}", last.error);
  if (last.finish == FinishReason::kCancelled) throw Error("interrupted");
}

void run(const RunOptionsCli& options) {
  options.device.apply();
  const bool batch = !options.prompts.empty();
  if (!batch && !options.output.empty()) throw UsageError("--output needs --prompts");
  if (options.resume && options.output.empty()) throw UsageError("--resume needs --output");
  const std::optional<std::string> prompt = batch ? std::nullopt : find_prompt(options);

  const LoadedModel loaded = options.device.load();
  spdlog::info("{}: {}", loaded.origin(), to_string(loaded.model().load_report()));
  const std::unique_ptr<ChatTemplate> own_template = load_chat_template(options, loaded);
  const bool interactive = !batch && !prompt;
  const ChatTemplate* chat = own_template.get();
  if (chat == nullptr && (options.chat || interactive)) chat = &loaded.chat_template();

  Engine engine(loaded, {.threads = options.device.thread_pool(),
                         .precision = options.device.precision(),
                         .kv_dtype = options.device.kv(),
                         .max_context = options.context,
                         .max_sequences = batch ? options.max_sequences : 1,
                         .batch_tokens = options.batch_tokens,
                         .reuse_last = interactive});
  if (batch) {
    const BatchOptions batch_options{
        .prompts = options.prompts,
        .output = options.output,
        .resume = options.resume,
        .sampling = options.sampling.params(loaded.generation()),
        .stop = options.sampling.stop(loaded.generation()),
        .max_new_tokens = options.max_tokens.value_or(kDefaultCompletionTokens)};
    const bool complete = run_batch(engine, loaded, chat, batch_options);
    print_stats(engine.stats());
    if (!complete) throw Error("{}: not every line was generated; see the output", options.prompts);
  } else if (interactive) {
    run_chat_session(engine, loaded, *chat,
                     {.system = options.system,
                      .thinking = thinking_switch(options),
                      .sampling = options.sampling.params(loaded.generation()),
                      .stop = options.sampling.stop(loaded.generation()),
                      .max_new_tokens = options.max_tokens.value_or(-1)});
    print_stats(engine.stats());
  } else {
    run_once(options, engine, loaded, chat, *prompt);
  }
}

}  // namespace

void add_run_command(CLI::App& app) {
  auto options = std::make_shared<RunOptionsCli>();
  CLI::App* command =
      app.add_subcommand("run", "Generate text: one prompt, a conversation, or a file of prompts");
  options->device.add_model(*command, kDefaultModel);
  auto* prompt = command->add_option("-p,--prompt", options->prompt,
                                     "Text to continue (or, with --chat, to answer)");
  command
      ->add_option("-f,--file", options->prompt_file,
                   "Read the prompt from a file (-: standard input)")
      ->excludes(prompt);
  command->add_flag("--chat,--conversation", options->chat,
                    "Apply the chat template; without a prompt: an interactive session");
  command->add_option("--system,--system-prompt", options->system, "System message (chat)");
  command->add_option("--chat-template", options->chat_template_file,
                      "Jinja file instead of the model's template");
  command->add_option("--thinking", options->thinking, "The template's enable_thinking switch")
      ->check(CLI::IsMember({"on", "off"}));
  command->add_option(
      "-n,--max-tokens,--n-predict", options->max_tokens,
      "Most tokens to generate (-1: until the context is full; default 128, chat -1)");
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
                   "{\"ids\": …} a line")
      ->excludes(prompt);
  command->add_option("-o,--output", options->output, "JSONL file for the results of --prompts");
  command->add_flag("--resume", options->resume, "Keep the results that --output already holds");
  command
      ->add_option("--max-sequences,--parallel", options->max_sequences,
                   "Prompts computed at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  options->sampling.add_to(*command);
  options->device.add_to(*command);
  command->footer(
      "Examples:\n"
      "  braid run                                   the bundled model continues a sentence\n"
      "  braid run ./gemma-3-270m-it --chat          talk to a model folder\n"
      "  braid run gemma-3-270m.gguf -p 'Once upon a time' -n 64 --temp 0\n"
      "  braid run ./model --prompts in.jsonl -o out.jsonl --max-sequences 16");
  command->callback([options] { run(*options); });
}

}  // namespace braid

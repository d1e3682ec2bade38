#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/command.h"
#include "apps/json_fields.h"
#include "apps/strict_json.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "engine/demo_models.h"
#include "engine/model_tokenizer.h"

namespace braid {
namespace {

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text;
  std::string file;
  std::string jsonl;
  bool no_bos = false;
  bool plain = false;
  bool json = false;
};

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& model) {
  const ModelFiles files = ModelFiles::open(resolve_model(model), /*with_weights=*/false);
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(files);
  if (tokenizer == nullptr) fail_without_tokenizer(files.origin());
  return tokenizer;
}

nlohmann::ordered_json describe(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  nlohmann::ordered_json json;
  json["ids"] = ids;
  json["text"] = tokenizer.decode(ids);
  return json;
}

void tokenize_lines(const Tokenizer& tokenizer, const std::string& path,
                    const EncodeOptions& encode) {
  const std::string text = read_input(path);
  size_t number = 0;
  for (const std::string_view line : split_lines(text)) {
    ++number;
    if (is_blank(line)) continue;
    try {
      const nlohmann::json json = parse_strict_json(line);
      const JsonFields fields(json, "the line");
      fields.allow_only({"text"});
      if (!fields.has("text")) throw Error("\"text\" is missing");
      write_out(dump_json(describe(tokenizer, tokenizer.encode(fields.string("text"), encode))) +
                "\n");
    } catch (const Error& error) {
      throw Error("{}:{}: {}", path, number, error.what());
    }
  }
}

void print_table(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) {
    write_out(fmt::format("{:8}  {}{}\n", id,
                          dump_json(nlohmann::json(std::string(tokenizer.token_text(id)))),
                          tokenizer.is_special(id) ? "  (special)" : ""));
  }
}

void run_tokenize(const TokenizeOptions& options) {
  if (options.model.empty()) {
    throw UsageError("MODEL is required (a folder, a .gguf file, or demo:NAME)");
  }
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.model);
  const EncodeOptions encode{
      .add_bos = tokenizer->adds_bos() && !options.no_bos,
      .special = options.plain ? SpecialTokens::kPlainText : SpecialTokens::kParse};
  if (!options.jsonl.empty()) return tokenize_lines(*tokenizer, options.jsonl, encode);
  const std::string text =
      options.text ? *options.text : read_input(options.file.empty() ? "-" : options.file);
  const std::vector<TokenId> ids = tokenizer->encode(text, encode);
  if (!options.json) return print_table(*tokenizer, ids);
  write_out(dump_json(describe(*tokenizer, ids)) + "\n");
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the token ids of a text");
  auto* positional =
      command->add_option("MODEL", options->model, "Hugging Face folder, .gguf file, or demo:NAME")
          ->option_text(" ");
  positional->excludes(
      command->add_option("-m,--model", options->model, "The same as MODEL")->option_text("MODEL"));
  auto* text =
      command->add_option("-p,--prompt,--text", options->text, "The text (default: standard input)")
          ->option_text("TEXT");
  auto* file =
      command
          ->add_option("-f,--file", options->file, "Read the text from a file (-: standard input)")
          ->excludes(text);
  command
      ->add_option("--jsonl", options->jsonl,
                   "File (-: standard input) with {\"text\": …} a line; prints "
                   "{\"ids\": […], \"text\": decoded} for each")
      ->excludes(text)
      ->excludes(file)
      ->option_text("FILE");
  command->add_flag("--no-bos", options->no_bos, "Do not put the begin-of-text token in front");
  command->add_flag("--no-special,--plain", options->plain,
                    "Treat special token strings as plain text");
  command->add_flag("--json", options->json,
                    "Print one JSON object: {\"ids\": […], \"text\": decoded}");
  command->footer(
      "Examples:\n  braid tokenize demo:gemma4 -p 'Hello world!'\n"
      "  braid tokenize model.gguf --json < text.txt\n"
      "  braid tokenize ./gemma-3-270m --jsonl texts.jsonl");
  command->callback([options] { run_tokenize(*options); });
}

}  // namespace braid

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/command.h"
#include "apps/device_options.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "engine/demo_models.h"
#include "engine/gguf_vocabulary.h"

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
  if (files.is_gguf()) return load_gguf_tokenizer(files.gguf());
  if (!files.tokenizer_json()) {
    throw Error("{}: there is no tokenizer.json; copy it from the model's original folder",
                files.origin());
  }
  return make_tokenizer_from_json(*files.tokenizer_json(),
                                  files.tokenizer_config_json().value_or(""),
                                  files.origin() + "/tokenizer.json");
}

nlohmann::ordered_json describe(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  nlohmann::ordered_json json;
  json["ids"] = ids;
  json["text"] = tokenizer.decode(ids);
  return json;
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void run_tokenize(const TokenizeOptions& options) {
  if (options.model.empty())
    throw UsageError("MODEL is required (a folder, a .gguf file, or demo:NAME)");
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.model);
  const EncodeOptions encode{
      .add_bos = tokenizer->adds_bos() && !options.no_bos,
      .special = options.plain ? SpecialTokens::kPlainText : SpecialTokens::kParse};
  if (!options.jsonl.empty()) {
    const std::string lines = options.jsonl == "-"
                                  ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                                  : read_file(options.jsonl);
    size_t number = 0;
    for (size_t begin = 0; begin < lines.size();) {
      const size_t end = std::min(lines.find('\n', begin), lines.size());
      ++number;
      const auto json =
          nlohmann::json::parse(lines.begin() + begin, lines.begin() + end, nullptr, false);
      if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) {
        throw Error("{}:{}: expected {{\"text\": …}}", options.jsonl, number);
      }
      std::puts(
          dump(describe(*tokenizer, tokenizer->encode(json["text"].get<std::string>(), encode)))
              .c_str());
      begin = end + 1;
    }
    return;
  }
  std::string text;
  if (options.text) {
    text = *options.text;
  } else if (!options.file.empty() && options.file != "-") {
    text = read_file(options.file);
  } else {
    text = std::string(std::istreambuf_iterator<char>(std::cin), {});
  }
  const std::vector<TokenId> ids = tokenizer->encode(text, encode);
  if (options.json) {
    std::puts(dump(describe(*tokenizer, ids)).c_str());
    return;
  }
  for (const TokenId id : ids) {
    const std::string token = nlohmann::json(std::string(tokenizer->token_text(id)))
                                  .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    std::printf("%8d  %s%s\n", id, token.c_str(), tokenizer->is_special(id) ? "  (special)" : "");
  }
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the token ids of a text");
  auto* positional =
      command->add_option("MODEL", options->model, "Hugging Face folder, .gguf file, or demo:NAME");
  positional->excludes(command->add_option("-m,--model", options->model, "The same as MODEL"));
  command->add_option("-p,--prompt,--text", options->text, "The text (default: standard input)");
  command->add_option("-f,--file", options->file, "Read the text from a file");
  command->add_option(
      "--jsonl", options->jsonl,
      "File with {\"text\": …} a line; prints {\"ids\": […], \"text\": decoded} for each");
  command->add_flag("--no-bos", options->no_bos, "Do not put the begin-of-text token in front");
  command->add_flag("--no-special,--plain", options->plain,
                    "Treat special token strings as plain text");
  command->add_flag("--json", options->json,
                    "Print one JSON object: {\"ids\": […], \"text\": decoded}");
  command->footer(
      "Examples:\n  braid tokenize demo:gemma4 -p 'Hello world!'\n"
      "  braid tokenize model.gguf --json < text.txt");
  command->callback([options] { run_tokenize(*options); });
}

}  // namespace braid

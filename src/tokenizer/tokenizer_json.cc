#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "tokenizer/json_node.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json_steps.h"
#include "tokenizer/tokenizer_parts.h"

namespace braid {
namespace {

// The configuration has no place for a path of its own: it lies beside tokenizer.json.
std::string config_origin(const std::string& origin) {
  const size_t slash = origin.rfind('/');
  return (slash == std::string::npos ? std::string() : origin.substr(0, slash + 1)) +
         "tokenizer_config.json";
}

JsonNode parse(simdjson::dom::parser& parser, std::string_view text, const std::string& origin) {
  simdjson::dom::element root;
  const auto code = parser.parse(text.data(), text.size()).get(root);
  if (code != simdjson::SUCCESS) {
    throw Error("{}: not valid JSON: {}", origin, simdjson::error_message(code));
  }
  JsonNode node(root, origin, "");
  node.object();
  return node;
}

void read_vocabulary(const JsonNode& model, Vocabulary& vocabulary) {
  const JsonNode node = model.get("vocab");
  const auto entries = node.object();
  vocabulary.reserve(entries.size(), entries.size() * 8);
  for (const auto entry : entries) {
    int64_t id = 0;
    if (entry.value.get(id) != simdjson::SUCCESS) {
      node.fail(fmt::format("the id of token '{}' is not a whole number", entry.key));
    }
    if (id < 0 || id >= Vocabulary::kMaxTokens) {
      node.fail(fmt::format("the id {} of token '{}' is out of range", id, entry.key));
    }
    switch (vocabulary.insert(static_cast<TokenId>(id), entry.key)) {
      case Vocabulary::Inserted::kNew:
        break;
      case Vocabulary::Inserted::kTextTaken:
        node.fail(fmt::format("token '{}' appears twice", entry.key));
      case Vocabulary::Inserted::kIdTaken:
      case Vocabulary::Inserted::kOutOfRange:
        node.fail(fmt::format("id {} is given to '{}' and to '{}'", id, entry.key,
                              vocabulary.text(static_cast<TokenId>(id))));
    }
  }
}

// Each merge is "left right" or ["left", "right"].
std::vector<Bpe::Merge> read_merges(const JsonNode& model, const Vocabulary& vocabulary) {
  const JsonNode node = model.get("merges");
  const auto list = node.array();
  std::vector<Bpe::Merge> merges;
  merges.reserve(list.size());
  std::string joined;
  size_t index = 0;
  for (const auto item : list) {
    std::string_view left, right, line;
    if (item.get(line) == simdjson::SUCCESS) {
      if (line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        node.element(item, index).fail("must be two tokens with one space between them");
      }
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else {
      simdjson::dom::array pair;
      if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
          pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS) {
        node.element(item, index).fail("must be two tokens, as \"a b\" or [\"a\", \"b\"]");
      }
    }
    joined.assign(left);
    joined += right;
    const auto left_id = vocabulary.find(left);
    const auto right_id = vocabulary.find(right);
    const auto joined_id = vocabulary.find(joined);
    if (!left_id || !right_id || !joined_id) {
      node.element(item, index)
          .fail(fmt::format("token '{}' is not in model.vocab", !left_id ? left
                                                                : !right_id
                                                                    ? right
                                                                    : std::string_view(joined)));
    }
    merges.push_back({*left_id, *right_id, *joined_id, static_cast<uint32_t>(index)});
    ++index;
  }
  return merges;
}

void refuse_affix(const JsonNode& model, std::string_view key) {
  const auto field = model.find(key);
  if (field && !field->string().empty()) field->fail("an affix for subwords is not supported");
}

void read_model(const JsonNode& model, TokenizerParts& parts) {
  const std::string_view type = model.text("type", "BPE");
  if (type != "BPE") {
    model.get("type").fail(fmt::format("model type '{}' is not supported (supported: BPE)", type));
  }
  refuse_affix(model, "continuing_subword_prefix");
  refuse_affix(model, "end_of_word_suffix");
  if (const auto dropout = model.find("dropout")) {
    double probability = 0;
    if (dropout->value().get(probability) != simdjson::SUCCESS) dropout->fail("must be a number");
    if (probability > 0) warn_once("the tokenizer's dropout is for training and not applied");
  }

  read_vocabulary(model, parts.vocabulary);
  Bpe::Options options;
  if (const auto unk = model.find("unk_token")) {
    options.unk = parts.vocabulary.find(unk->string());
    if (!options.unk) {
      unk->fail(fmt::format("token '{}' is not in model.vocab", unk->string()));
    }
    parts.unk = options.unk;
  }
  options.byte_fallback = model.flag("byte_fallback", false);
  options.fuse_unk = model.flag("fuse_unk", false);
  options.ignore_merges = model.flag("ignore_merges", false);
  parts.bpe.emplace(parts.vocabulary, read_merges(model, parts.vocabulary), options);
}

AddedToken read_added_token(const JsonNode& node) {
  AddedToken token;
  token.content = node.get("content").string();
  token.special = node.flag("special", false);
  token.normalized = node.flag("normalized", !token.special);
  token.single_word = node.flag("single_word", false);
  token.lstrip = node.flag("lstrip", false);
  token.rstrip = node.flag("rstrip", false);
  return token;
}

void read_added_tokens(const JsonNode& root, TokenizerParts& parts) {
  const auto list = root.find("added_tokens");
  if (!list) return;
  size_t index = 0;
  for (const auto item : list->array()) {
    const JsonNode node = list->element(item, index++);
    AddedToken token = read_added_token(node);
    if (token.content.empty()) continue;
    const JsonNode id_field = node.get("id");
    const int64_t id = id_field.integer();
    // As in the Python package, a token of the model keeps the id that it has there.
    if (const auto known = parts.vocabulary.find(token.content)) {
      token.id = *known;
      if (*known != id) {
        warn_once(fmt::format("added token '{}': id {} in added_tokens, {} in use", token.content,
                              id, *known));
      }
    } else {
      if (id < 0 || id >= Vocabulary::kMaxTokens) id_field.fail("is out of range");
      token.id = static_cast<TokenId>(id);
      if (parts.vocabulary.insert(token.id, token.content) != Vocabulary::Inserted::kNew) {
        id_field.fail(
            fmt::format("id {} belongs to token '{}'", id, parts.vocabulary.text(token.id)));
      }
    }
    parts.add_token(token);
  }
}

// A template that begins with a special token names BOS.
void read_post_processor(const JsonNode& node, TokenizerParts& parts) {
  const std::string_view type = node.get("type").string();
  if (type == "Sequence") {
    const JsonNode list = node.get("processors");
    size_t index = 0;
    for (const auto item : list.array()) {
      read_post_processor(list.element(item, index++), parts);
    }
    return;
  }
  if (type != "TemplateProcessing") return;  // the others only adjust offsets
  const JsonNode single = node.get("single");
  const auto items = single.array();
  if (items.size() == 0) return;
  const JsonNode first = single.element(items.at(0), 0);
  const auto special = first.find("SpecialToken");
  if (!special) return;
  const JsonNode name = special->get("id");
  const auto id = parts.vocabulary.find(name.string());
  if (!id) name.fail(fmt::format("token '{}' is not in the vocabulary", name.string()));
  parts.bos = id;
  parts.adds_bos = true;
}

// A token given as "text" or as {"content": "text", ...}.
AddedToken read_config_token(const JsonNode& node) {
  if (node.is_object()) {
    AddedToken token = read_added_token(node);
    token.special = true;
    token.normalized = false;
    return token;
  }
  AddedToken token;
  token.content = node.string();
  token.special = true;
  return token;
}

// The id of a token that the configuration names; one that the model has but that is not an added
// token becomes a special one.
std::optional<TokenId> use_config_token(const JsonNode& node, TokenizerParts& parts) {
  AddedToken token = read_config_token(node);
  const auto id = parts.vocabulary.find(token.content);
  if (!id) {
    warn_once(
        fmt::format("tokenizer_config.json names token '{}', which tokenizer.json does not "
                    "have; ignored",
                    token.content));
    return std::nullopt;
  }
  token.id = *id;
  if (!parts.has_flag(*id, TokenizerParts::kAdded)) parts.add_token(token);
  return id;
}

void use_config_tokens(const std::optional<JsonNode>& tokens, TokenizerParts& parts) {
  if (!tokens) return;
  if (tokens->is_object()) {
    for (const auto entry : tokens->object()) {
      use_config_token(tokens->child(entry.value, entry.key), parts);
    }
    return;
  }
  size_t index = 0;
  for (const auto item : tokens->array()) use_config_token(tokens->element(item, index++), parts);
}

void read_config(const JsonNode& config, TokenizerParts& parts) {
  const auto named = [&](std::string_view key, std::optional<TokenId>& id) {
    if (const auto field = config.find(key)) {
      if (const auto found = use_config_token(*field, parts)) id = found;
    }
  };
  named("bos_token", parts.bos);
  named("eos_token", parts.eos);
  named("pad_token", parts.pad);
  named("unk_token", parts.unk);
  use_config_tokens(config.find("additional_special_tokens"), parts);
  use_config_tokens(config.find("extra_special_tokens"), parts);
  parts.adds_bos = config.flag("add_bos_token", parts.adds_bos);
}

// For a tokenizer.json that comes alone: the usual names, where they are special added tokens.
void guess_missing_ids(TokenizerParts& parts) {
  const auto guess = [&](std::optional<TokenId>& id, auto... names) {
    for (const std::string_view name : {std::string_view(names)...}) {
      const auto found = parts.vocabulary.find(name);
      if (!id && found && parts.has_flag(*found, TokenizerParts::kSpecial)) id = found;
    }
  };
  guess(parts.bos, "<bos>", "<s>", "<|begin_of_text|>");
  guess(parts.eos, "<eos>", "</s>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>");
  guess(parts.pad, "<pad>");
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_from_json(std::string_view tokenizer_json,
                                                    std::string_view tokenizer_config_json,
                                                    const std::string& origin) {
  auto parts = std::make_unique<TokenizerParts>();
  simdjson::dom::parser parser;
  const JsonNode root = parse(parser, tokenizer_json, origin);
  if (const auto node = root.find("normalizer")) parts->normalizer = read_normalizer(*node);
  if (const auto node = root.find("pre_tokenizer"))
    parts->pre_tokenizer = read_pre_tokenizer(*node);
  if (const auto node = root.find("decoder")) parts->decoder = read_decoder(*node);
  try {
    read_model(root.get("model"), *parts);
    read_added_tokens(root, *parts);
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(origin)) throw;
    throw Error("{}: {}", origin, error.what());
  }
  if (const auto node = root.find("post_processor")) read_post_processor(*node, *parts);

  if (tokenizer_config_json.empty()) {
    guess_missing_ids(*parts);
  } else {
    simdjson::dom::parser config_parser;
    const std::string config_path = config_origin(origin);
    read_config(parse(config_parser, tokenizer_config_json, config_path), *parts);
  }
  if (parts->is_gemma_form()) parts->adds_bos = true;
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace braid

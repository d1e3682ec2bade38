#include "convert/gguf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/printable.h"
#include "tokenizer/gguf_pre_patterns.h"
#include "tokenizer/gguf_token_type.h"
#include "tokenizer/tokenizer.h"

namespace braid {
namespace {

using nlohmann::json;

// Of tokens that no merge makes.
constexpr float kScoreOfParts = -1e6f;

bool is_byte_token(std::string_view text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
}

class TokenizerSection {
 public:
  TokenizerSection(const ModelFiles& files, std::string architecture, int64_t vocabulary,
                   GgufMetadataWriter& out)
      : files_(files), architecture_(std::move(architecture)), vocabulary_(vocabulary), out_(out) {}

  void add() {
    const std::string origin = files_.origin() + "/tokenizer.json";
    try {
      file_ = json::parse(*files_.tokenizer_json());
      read_tokens();
      read_merges();
      add_model(origin);
    } catch (const json::exception& error) {
      throw Error("{}: {}", origin, error.what());
    }
    add_ids(origin);
    if (files_.chat_template()) out_.add_string("tokenizer.chat_template", *files_.chat_template());
  }

 private:
  void read_tokens() {
    const json& model = file_.at("model");
    const bool byte_fallback = model.value("byte_fallback", false);
    size_t size = static_cast<size_t>(vocabulary_);
    for (const auto& [text, id] : model.at("vocab").items()) {
      size = std::max(size, id.get<size_t>() + 1);
    }
    for (const json& token : file_.value("added_tokens", json::array())) {
      size = std::max(size, token.at("id").get<size_t>() + 1);
    }
    tokens_.resize(size);
    types_.assign(size, GgufTokenType::kUnused);
    for (const auto& [text, id] : model.at("vocab").items()) {
      set(id, text,
          byte_fallback && is_byte_token(text) ? GgufTokenType::kByte : GgufTokenType::kNormal);
    }
    for (const json& token : file_.value("added_tokens", json::array())) {
      set(token.at("id"), token.at("content").get<std::string>(),
          token.value("special", false) ? GgufTokenType::kControl : GgufTokenType::kUserDefined);
    }
    if (const json unknown = model.value("unk_token", json()); unknown.is_string()) {
      const auto found = ids_.find(unknown.get<std::string>());
      if (found != ids_.end()) types_[found->second] = GgufTokenType::kUnknown;
    }
    for (size_t id = 0; id < size; ++id) {
      if (types_[id] != GgufTokenType::kUnused) continue;
      tokens_[id] = fmt::format("[PAD{}]", id);
      not_sampled_.push_back(static_cast<int32_t>(id));
    }
  }

  void set(const json& id, const std::string& text, int32_t type) {
    tokens_[id.get<size_t>()] = text;
    types_[id.get<size_t>()] = type;
    ids_[text] = id.get<size_t>();
  }

  void read_merges() {
    for (const json& merge : file_.at("model").at("merges")) {
      if (merge.is_string()) {
        merges_.push_back(merge.get<std::string>());
        if (merges_.back().starts_with("#version")) merges_.pop_back();
        continue;
      }
      const std::string left = merge.at(0).get<std::string>();
      if (left.find(' ', 1) != left.npos) {
        throw Error("{}/tokenizer.json: merge of '{}': GGUF files cannot say it", files_.origin(),
                    printable(left));
      }
      merges_.push_back(left + " " + merge.at(1).get<std::string>());
    }
  }

  // The earlier the first merge that makes a token, the higher its score.
  std::vector<float> scores() const {
    std::vector<float> scores(tokens_.size(), kScoreOfParts);
    for (size_t rank = merges_.size(); rank-- > 0;) {
      std::string joined = merges_[rank];
      joined.erase(joined.find(' ', 1), 1);
      const auto found = ids_.find(joined);
      if (found != ids_.end()) scores[found->second] = -static_cast<float>(rank);
    }
    return scores;
  }

  void add_model(const std::string& origin) {
    const json& model = file_.at("model");
    if (model.value("type", "BPE") != "BPE") {
      throw Error("{}: a tokenizer of type {} cannot be written as GGUF", origin,
                  model["type"].dump());
    }
    if (model.value("byte_fallback", false)) {
      const bool scored = architecture_ == "gemma3";
      out_.add_string("tokenizer.ggml.model", scored ? "llama" : "gemma4");
      out_.add_string("tokenizer.ggml.pre", "default");
      add_tokens();
      out_.add_numbers("tokenizer.ggml.scores", scores());
      if (!scored) out_.add_strings("tokenizer.ggml.merges", merges_);
      out_.add_boolean("tokenizer.ggml.add_space_prefix", false);
    } else {
      out_.add_string("tokenizer.ggml.model", "gpt2");
      out_.add_string("tokenizer.ggml.pre", pre_tokenizer(origin));
      add_tokens();
      out_.add_strings("tokenizer.ggml.merges", merges_);
    }
  }

  void add_tokens() {
    out_.add_strings("tokenizer.ggml.tokens", tokens_);
    out_.add_integers("tokenizer.ggml.token_type", types_);
  }

  // The name that stands for the regular expression of the pre-tokenizer.
  std::string pre_tokenizer(const std::string& origin) const {
    const json pre = file_.value("pre_tokenizer", json::object());
    std::vector<json> steps;
    if (pre.is_object()) {
      if (pre.contains("pretokenizers")) {
        for (const json& step : pre["pretokenizers"]) steps.push_back(step);
      } else {
        steps.push_back(pre);
      }
    }
    for (const json& step : steps) {
      if (step.value("type", "") != "Split") continue;
      const json pattern = step.value("pattern", json::object());
      const std::string regex = pattern.value("Regex", "");
      if (const std::string_view name = gguf_pre_name(regex); !name.empty()) {
        return std::string(name);
      }
      throw Error("{}: pre_tokenizer: GGUF files have no name for the pattern {}", origin,
                  printable(regex, 200));
    }
    throw Error("{}: pre_tokenizer: GGUF files need one that splits by a pattern", origin);
  }

  void add_ids(const std::string& origin) {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer_from_json(
        *files_.tokenizer_json(), files_.tokenizer_config_json().value_or(""), origin);
    const auto add = [&](const char* name, std::optional<TokenId> id) {
      if (id) out_.add_integer(fmt::format("tokenizer.ggml.{}_token_id", name), *id);
    };
    const GenerationDefaults& generation = files_.generation();
    std::vector<int32_t> stops = generation.stop_ids;
    std::optional<TokenId> end = tokenizer->eos_id();
    if (!end && !stops.empty()) end = stops.front();
    if (end) std::erase(stops, *end);
    add("bos", tokenizer->bos_id() ? tokenizer->bos_id() : generation.bos_id);
    add("eos", end);
    if (!stops.empty()) add("eot", stops[0]);
    if (stops.size() > 1) add("eom", stops[1]);
    if (stops.size() > 2) {
      spdlog::warn("{}: of {} tokens that end a text a GGUF file can name three", files_.origin(),
                   stops.size() + 1);
    }
    add("unknown", tokenizer->unk_id());
    add("padding", tokenizer->pad_id());
    out_.add_boolean("tokenizer.ggml.add_bos_token", tokenizer->adds_bos());
    not_sampled_.insert(not_sampled_.end(), generation.suppress_ids.begin(),
                        generation.suppress_ids.end());
    if (!not_sampled_.empty()) {
      out_.add_integers("tokenizer.ggml.suppress_tokens", not_sampled_);
    }
  }

  const ModelFiles& files_;
  std::string architecture_;
  int64_t vocabulary_;
  GgufMetadataWriter& out_;
  json file_;
  std::vector<std::string> tokens_, merges_;
  std::vector<int32_t> types_, not_sampled_;
  std::unordered_map<std::string, size_t> ids_;
};

}  // namespace

void add_gguf_tokenizer(const ModelFiles& files, const std::string& architecture,
                        int64_t vocabulary, GgufMetadataWriter& out) {
  if (!files.tokenizer_json()) {
    out.add_string("tokenizer.ggml.model", "none");
    return;
  }
  TokenizerSection(files, architecture, vocabulary, out).add();
}

}  // namespace braid

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "tokenizer/gguf_pre_patterns.h"
#include "tokenizer/gguf_token_type.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_parts.h"

namespace braid {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// Delimiters that some published files type as ordinary text although the model uses them as
// control tokens (tool calls, thinking, turns of the Gemma and Qwen families).
constexpr std::array<std::string_view, 17> kControlNames = {
    "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>",
    "<|channel>",   "<channel|>",   "<|tool>",          "<tool|>",          "<|turn>",
    "<turn|>",      "<|think|>",    "<start_of_turn>",  "<end_of_turn>",    "<|im_start|>",
    "<|im_end|>",   "<|endoftext|>"};

class GgufTokenizerBuilder {
 public:
  GgufTokenizerBuilder(GgufVocabulary source, const std::string& origin)
      : source_(std::move(source)), origin_(origin), parts_(std::make_unique<TokenizerParts>()) {}

  std::unique_ptr<Tokenizer> build() {
    read_tokens();
    read_ids();
    retype_control_tokens();
    if (source_.model == "llama") {
      build_scored();
    } else if (source_.model == "gpt2") {
      build_byte_level();
    } else if (source_.model == "gemma4") {
      build_gemma4();
    } else {
      fail("model",
           fmt::format("'{}' is not supported (supported: llama, gpt2, gemma4)", source_.model));
    }
    register_tokens();
    parts_->adds_bos = source_.add_bos.value_or(source_.model == "llama");
    if (parts_->is_gemma_form()) parts_->adds_bos = true;
    return std::make_unique<Tokenizer>(std::move(parts_));
  }

 private:
  [[noreturn]] void fail(std::string_view key, std::string_view what) const {
    throw Error("{}: tokenizer.ggml.{}: {}", origin_, key, what);
  }

  void check_count(std::string_view key, size_t count) const {
    if (count != source_.tokens.size()) {
      fail(key, fmt::format("{} entries for {} tokens", count, source_.tokens.size()));
    }
  }

  void read_tokens() {
    if (source_.tokens.empty()) fail("tokens", "the list is missing or empty");
    if (source_.tokens.size() > static_cast<size_t>(Vocabulary::kMaxTokens)) {
      fail("tokens", fmt::format("{} tokens are too many", source_.tokens.size()));
    }
    if (source_.types.empty()) source_.types.assign(source_.tokens.size(), GgufTokenType::kNormal);
    check_count("token_type", source_.types.size());
    size_t bytes = 0;
    for (const std::string& token : source_.tokens) bytes += token.size();
    parts_->vocabulary.reserve(source_.tokens.size(), bytes);
    // Of tokens with the same text the first is found by it.
    for (size_t id = 0; id < source_.tokens.size(); ++id) {
      parts_->vocabulary.insert(static_cast<TokenId>(id), source_.tokens[id]);
    }
  }

  void read_ids() {
    const auto checked = [&](std::string_view key, std::optional<TokenId> id) {
      if (id && !parts_->vocabulary.contains(*id)) {
        fail(key, fmt::format("id {} is outside the vocabulary of {} tokens", *id,
                              source_.tokens.size()));
      }
      return id;
    };
    parts_->bos = checked("bos_token_id", source_.bos);
    parts_->eos = checked("eos_token_id", source_.eos);
    parts_->pad = checked("padding_token_id", source_.pad);
    parts_->unk = checked("unknown_token_id", source_.unk);
    checked("eot_token_id", source_.eot);
  }

  void retype_control_tokens() {
    std::vector<TokenId> ids;
    for (const std::string_view name : kControlNames) {
      if (const auto id = parts_->vocabulary.find(name)) ids.push_back(*id);
    }
    for (const auto id : {source_.bos, source_.eos, source_.eot, source_.pad}) {
      if (id) ids.push_back(*id);
    }
    std::vector<std::string> changed;
    for (const TokenId id : ids) {
      int32_t& type = source_.types[id];
      if (type == GgufTokenType::kControl || type == GgufTokenType::kUnknown) continue;
      type = GgufTokenType::kControl;
      changed.push_back(fmt::format("{} '{}'", id, source_.tokens[id]));
    }
    if (!changed.empty()) {
      spdlog::info("{}: treated as control tokens although typed otherwise: {}", origin_,
                   fmt::join(changed, ", "));
    }
  }

  void build_scored() {
    check_count("scores", source_.scores.size());
    Bpe::Options options;
    options.byte_fallback = true;
    options.unk = parts_->unk;
    // Control, unknown and byte tokens are never the result of a merge.
    std::vector<bool> mergeable(source_.tokens.size());
    for (size_t id = 0; id < mergeable.size(); ++id) {
      const int32_t type = source_.types[id];
      mergeable[id] = type != GgufTokenType::kControl && type != GgufTokenType::kUnknown &&
                      type != GgufTokenType::kByte;
    }
    try {
      parts_->bpe = Bpe::from_scores(parts_->vocabulary, source_.scores, mergeable, options);
    } catch (const Error& error) {
      fail("scores", error.what());
    }

    std::vector<NormalizerPtr> steps;
    const bool prefix = source_.add_space_prefix.value_or(true);
    if (prefix) steps.push_back(make_prepend_normalizer(" "));
    steps.push_back(make_replace_normalizer(Regex::literal(" "), std::string(kSpaceMark)));
    parts_->normalizer = make_normalizer_sequence(std::move(steps));
    set_space_decoder(prefix);
  }

  void build_gemma4() {
    Bpe::Options options;
    options.byte_fallback = true;
    options.unk = parts_->unk;
    options.whole_newline_runs = true;
    parts_->bpe.emplace(parts_->vocabulary, read_merges(), options);
    parts_->normalizer = make_replace_normalizer(Regex::literal(" "), std::string(kSpaceMark));
    parts_->pre_tokenizer = make_split(Regex(R"(\n+)"), SplitBehavior::kIsolated, false);
    set_space_decoder(false);
  }

  void build_byte_level() {
    const auto& table = gguf_pre_patterns();
    const std::string_view name = source_.pre.empty() ? std::string_view("default") : source_.pre;
    const auto pre = std::find_if(table.begin(), table.end(),
                                  [&](const GgufPrePattern& entry) { return entry.name == name; });
    if (pre == table.end()) {
      std::vector<std::string_view> known;
      for (const GgufPrePattern& entry : table) known.push_back(entry.name);
      fail("pre",
           fmt::format("'{}' is not supported (supported: {})", name, fmt::join(known, ", ")));
    }
    Bpe::Options options;
    options.unk = parts_->unk;
    options.ignore_merges = pre->ignore_merges;
    parts_->bpe.emplace(parts_->vocabulary, read_merges(), options);
    if (pre->nfc) parts_->normalizer = make_unicode_normalizer(NormalForm::kNfc);
    std::vector<PreTokenizerPtr> steps;
    for (const std::string_view pattern : pre->patterns) {
      steps.push_back(make_split(Regex(pattern), SplitBehavior::kIsolated, false));
    }
    steps.push_back(make_byte_level(source_.add_space_prefix.value_or(false), /*use_regex=*/false));
    parts_->pre_tokenizer = make_pre_tokenizer_sequence(std::move(steps));
    std::vector<TokenDecoder::Step> decode;
    decode.emplace_back(TokenDecoder::ByteLevel{});
    parts_->decoder = TokenDecoder(std::move(decode), {});
  }

  void set_space_decoder(bool prefix) {
    std::vector<TokenDecoder::Step> steps;
    steps.emplace_back(TokenDecoder::Replace{Regex::literal(kSpaceMark), " "});
    steps.emplace_back(TokenDecoder::ByteFallback{});
    parts_->decoder = TokenDecoder(std::move(steps), {U' ', prefix ? size_t{1} : size_t{0}});
  }

  // "left right", where left may itself begin with a space.
  std::vector<Bpe::Merge> read_merges() const {
    if (source_.merges.empty()) fail("merges", "the list is missing or empty");
    std::vector<Bpe::Merge> merges;
    merges.reserve(source_.merges.size());
    std::string joined;
    for (size_t i = 0; i < source_.merges.size(); ++i) {
      const std::string_view line = source_.merges[i];
      const size_t space = line.find(' ', 1);
      if (space == std::string_view::npos) {
        fail("merges", fmt::format("entry {} is not two tokens with a space between them", i));
      }
      const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
      joined.assign(left);
      joined += right;
      const auto left_id = parts_->vocabulary.find(left);
      const auto right_id = parts_->vocabulary.find(right);
      const auto joined_id = parts_->vocabulary.find(joined);
      if (!left_id || !right_id || !joined_id) {
        fail("merges", fmt::format("entry {} uses '{}', which is not a token", i,
                                   !left_id    ? left
                                   : !right_id ? right
                                               : std::string_view(joined)));
      }
      merges.push_back({*left_id, *right_id, *joined_id, static_cast<uint32_t>(i)});
    }
    return merges;
  }

  // Control, unknown and user-defined tokens are cut out of the raw text.
  void register_tokens() {
    for (size_t id = 0; id < source_.tokens.size(); ++id) {
      const int32_t type = source_.types[id];
      if (type != GgufTokenType::kControl && type != GgufTokenType::kUnknown &&
          type != GgufTokenType::kUserDefined)
        continue;
      AddedToken token;
      token.id = static_cast<TokenId>(id);
      token.content = source_.tokens[id];
      token.special = type != GgufTokenType::kUserDefined;
      parts_->add_token(token);
    }
  }

  GgufVocabulary source_;
  const std::string& origin_;
  std::unique_ptr<TokenizerParts> parts_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer_from_gguf(GgufVocabulary vocabulary,
                                                    const std::string& origin) {
  return GgufTokenizerBuilder(std::move(vocabulary), origin).build();
}

}  // namespace braid

#include "tokenizer/tokenizer_json_steps.h"

#include <utility>

#include "tokenizer/utf8.h"

namespace braid {
namespace {

[[noreturn]] void fail_type(const JsonNode& node, std::string_view known) {
  node.get("type").fail(
      fmt::format("type '{}' is not supported (supported: {})", node.get("type").string(), known));
}

std::string_view type_of(const JsonNode& node) { return node.get("type").string(); }

// {"String": "..."} or {"Regex": "..."}
Regex read_pattern(const JsonNode& node) {
  const JsonNode pattern = node.get("pattern");
  if (const auto literal = pattern.find("String")) return Regex::literal(literal->string());
  if (const auto regex = pattern.find("Regex")) {
    try {
      return Regex(regex->string());
    } catch (const Error& error) {
      regex->fail(error.what());
    }
  }
  pattern.fail("must be {\"String\": ...} or {\"Regex\": ...}");
}

SplitBehavior read_behavior(const JsonNode& node) {
  const JsonNode field = node.get("behavior");
  const std::string_view name = field.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.fail(
      fmt::format("behavior '{}' is not supported (supported: Removed, Isolated, "
                  "MergedWithPrevious, MergedWithNext, Contiguous)",
                  name));
}

// Reads prepend_scheme, or add_prefix_space of older files.
PrependScheme read_prepend_scheme(const JsonNode& node) {
  const auto field = node.find("prepend_scheme");
  if (!field) {
    return node.flag("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
  }
  const std::string_view name = field->string();
  if (name == "always") return PrependScheme::kAlways;
  if (name == "never") return PrependScheme::kNever;
  if (name == "first") return PrependScheme::kFirst;
  field->fail(fmt::format("scheme '{}' is not supported (supported: always, never, first)", name));
}

std::string read_replacement(const JsonNode& node) {
  const std::string_view mark = node.text("replacement", "\xE2\x96\x81");
  if (mark.empty() || static_cast<size_t>(utf8_length(mark[0])) != mark.size()) {
    node.get("replacement").fail("must be one character");
  }
  return std::string(mark);
}

size_t read_count(const JsonNode& node, std::string_view key) {
  const auto field = node.find(key);
  if (!field) return 0;
  if (field->integer() < 0) field->fail("must not be negative");
  return static_cast<size_t>(field->integer());
}

TokenDecoder::Strip read_strip(const JsonNode& node) {
  const std::string_view content = node.text("content", " ");
  if (content.empty() || static_cast<size_t>(utf8_length(content[0])) != content.size()) {
    node.get("content").fail("must be one character");
  }
  return {utf8_first(content), read_count(node, "start"), read_count(node, "stop")};
}

struct DecoderBuilder {
  std::vector<TokenDecoder::Step> steps;
  TokenDecoder::LeadingStrip leading;
  bool fused = false;

  void add(const JsonNode& node) {
    const std::string_view type = type_of(node);
    if (type == "Sequence") {
      const JsonNode list = node.get("decoders");
      size_t i = 0;
      for (const auto step : list.array()) add(list.element(step, i++));
    } else if (type == "Fuse") {
      fused = true;
    } else if (type == "Strip") {
      const TokenDecoder::Strip strip = read_strip(node);
      if (!fused) {
        steps.emplace_back(strip);
      } else if (strip.stop > 0) {
        node.get("stop").fail("stripping the end of the joined text is not supported");
      } else if (leading.count > 0) {
        node.fail("only one Strip behind Fuse is supported");
      } else {
        leading = {strip.content, strip.start};
      }
    } else if (fused) {
      node.fail(fmt::format("decoder '{}' behind Fuse is not supported", type));
    } else if (type == "Replace") {
      steps.emplace_back(
          TokenDecoder::Replace{read_pattern(node), std::string(node.get("content").string())});
    } else if (type == "ByteFallback") {
      steps.emplace_back(TokenDecoder::ByteFallback{});
    } else if (type == "ByteLevel") {
      steps.emplace_back(TokenDecoder::ByteLevel{});
    } else if (type == "Metaspace") {
      steps.emplace_back(TokenDecoder::Metaspace{
          read_replacement(node), read_prepend_scheme(node) != PrependScheme::kNever});
    } else {
      fail_type(node, "Sequence, Replace, ByteFallback, ByteLevel, Fuse, Strip, Metaspace");
    }
  }
};

}  // namespace

NormalizerPtr read_normalizer(const JsonNode& node) {
  const std::string_view type = type_of(node);
  if (type == "Sequence") {
    const JsonNode list = node.get("normalizers");
    std::vector<NormalizerPtr> steps;
    for (const auto step : list.array()) {
      steps.push_back(read_normalizer(list.element(step, steps.size())));
    }
    return make_normalizer_sequence(std::move(steps));
  }
  if (type == "Replace") {
    return make_replace_normalizer(read_pattern(node), std::string(node.get("content").string()));
  }
  if (type == "Prepend") return make_prepend_normalizer(std::string(node.get("prepend").string()));
  if (type == "NFC") return make_unicode_normalizer(NormalForm::kNfc);
  if (type == "NFD") return make_unicode_normalizer(NormalForm::kNfd);
  if (type == "NFKC") return make_unicode_normalizer(NormalForm::kNfkc);
  if (type == "NFKD") return make_unicode_normalizer(NormalForm::kNfkd);
  if (type == "Lowercase") return make_lowercase_normalizer();
  if (type == "StripAccents") return make_strip_accents_normalizer();
  if (type == "Strip") {
    return make_strip_normalizer(node.flag("strip_left", true), node.flag("strip_right", true));
  }
  if (type == "ByteLevel") return make_byte_level_normalizer();
  fail_type(node,
            "Sequence, Replace, Prepend, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
            "ByteLevel");
}

PreTokenizerPtr read_pre_tokenizer(const JsonNode& node) {
  const std::string_view type = type_of(node);
  if (type == "Sequence") {
    const JsonNode list = node.get("pretokenizers");
    std::vector<PreTokenizerPtr> steps;
    for (const auto step : list.array()) {
      steps.push_back(read_pre_tokenizer(list.element(step, steps.size())));
    }
    return make_pre_tokenizer_sequence(std::move(steps));
  }
  if (type == "Split") {
    return make_split(read_pattern(node), read_behavior(node), node.flag("invert", false));
  }
  if (type == "ByteLevel") {
    return make_byte_level(node.flag("add_prefix_space", true), node.flag("use_regex", true));
  }
  if (type == "Metaspace") {
    return make_metaspace(read_replacement(node), read_prepend_scheme(node),
                          node.flag("split", true));
  }
  if (type == "Digits") return make_digits(node.flag("individual_digits", false));
  if (type == "Punctuation") {
    return make_punctuation(node.find("behavior") ? read_behavior(node) : SplitBehavior::kIsolated);
  }
  if (type == "WhitespaceSplit") return make_whitespace_split();
  fail_type(node, "Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, WhitespaceSplit");
}

TokenDecoder read_decoder(const JsonNode& node) {
  DecoderBuilder builder;
  builder.add(node);
  return TokenDecoder(std::move(builder.steps), builder.leading);
}

}  // namespace braid

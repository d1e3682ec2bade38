#include "tokenizer/tokenizer.h"

#include <utility>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

namespace braid {

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > INT32_MAX) throw Error("a text of {} bytes is too long to encode", text.size());
  std::string repaired;
  if (!utf8_is_valid(text)) {
    repaired = utf8_repair(text);
    text = repaired;
  }
  const bool parse_special = options.special == SpecialTokens::kParse;
  std::vector<TokenId> ids;
  Bpe::Scratch scratch;
  for (const auto& raw : parts_->raw_added.split(text, parse_special)) {
    if (raw.token) {
      ids.push_back(raw.token->id);
      continue;
    }
    std::string normalized;
    std::string_view ordinary = raw.text;
    if (parts_->normalizer) {
      normalized = parts_->normalizer->apply(raw.text);
      ordinary = normalized;
    }
    for (const auto& piece : parts_->normalized_added.split(ordinary, parse_special)) {
      if (piece.token) {
        ids.push_back(piece.token->id);
        continue;
      }
      if (!parts_->pre_tokenizer) {
        parts_->bpe->encode(piece.text, scratch, ids);
        continue;
      }
      TextPieces pieces;
      pieces.text = piece.text;
      pieces.ranges = {{0, pieces.text.size()}};
      pieces.starts_input = raw.text.data() == text.data() && piece.text.data() == ordinary.data();
      parts_->pre_tokenizer->apply(pieces);
      for (const TextRange& range : pieces.ranges) {
        parts_->bpe->encode(
            std::string_view(pieces.text).substr(range.begin, range.end - range.begin), scratch,
            ids);
      }
    }
  }
  if (options.add_bos && parts_->bos && (ids.empty() || ids[0] != *parts_->bos)) {
    ids.insert(ids.begin(), *parts_->bos);
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const TokenId id : ids) text += decoder.push(id);
  text += decoder.flush();
  return text;
}

int64_t Tokenizer::vocab_size() const { return parts_->vocabulary.size(); }

std::string_view Tokenizer::token_text(TokenId id) const { return parts_->vocabulary.text(id); }

std::string Tokenizer::token_bytes(TokenId id, bool render_special) const {
  if (!parts_->vocabulary.contains(id) || (is_special(id) && !render_special)) return {};
  return parts_->decoder.bytes(token_text(id), /*first=*/false,
                               parts_->has_flag(id, TokenizerParts::kAdded));
}

std::optional<TokenId> Tokenizer::token_id(std::string_view token_text) const {
  return parts_->vocabulary.find(token_text);
}

bool Tokenizer::is_special(TokenId id) const {
  return parts_->has_flag(id, TokenizerParts::kSpecial);
}

std::optional<TokenId> Tokenizer::bos_id() const { return parts_->bos; }
std::optional<TokenId> Tokenizer::eos_id() const { return parts_->eos; }
std::optional<TokenId> Tokenizer::pad_id() const { return parts_->pad; }
std::optional<TokenId> Tokenizer::unk_id() const { return parts_->unk; }
bool Tokenizer::adds_bos() const { return parts_->adds_bos; }

}  // namespace braid

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary.h"

namespace braid {

// Whether special token strings found in the text become their ids. kPlainText is for text that
// must not be able to forge control tokens; added tokens that are not special are still recognised.
enum class SpecialTokens { kParse, kPlainText };

struct EncodeOptions {
  // The result begins with exactly one BOS: none is put before text that itself encodes to one
  // first. Without effect when the tokenizer has no BOS.
  bool add_bos = false;
  SpecialTokens special = SpecialTokens::kParse;
};

struct TokenizerParts;

// Text to token ids and back. Immutable after construction; every method may be called from any
// thread.
class Tokenizer {
 public:
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  ~Tokenizer();

  // Ill-formed UTF-8 in the text is replaced by U+FFFD first (one for each maximal ill-formed
  // part). Throws Error when the text exceeds 2 GiB, or when the tokenizer's own regular expression
  // takes too long on it.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The text of a whole sequence: well-formed UTF-8, with U+FFFD for bytes that form no character.
  // skip_special leaves special tokens out. Ids without a token contribute nothing.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  // Ids are 0 .. vocab_size() - 1, added tokens included; some may have no token.
  int64_t vocab_size() const;

  // The raw vocabulary string; empty for an id without a token. Lives as long as the tokenizer.
  std::string_view token_text(TokenId id) const;

  // The bytes that the token contributes when it is not the first one: not necessarily whole
  // characters. A special token contributes nothing unless render_special.
  std::string token_bytes(TokenId id, bool render_special) const;

  std::optional<TokenId> token_id(std::string_view token_text) const;

  // Control-like: hidden when special tokens are skipped.
  bool is_special(TokenId id) const;

  std::optional<TokenId> bos_id() const;
  std::optional<TokenId> eos_id() const;
  std::optional<TokenId> pad_id() const;
  std::optional<TokenId> unk_id() const;

  // Whether raw text (not the output of a chat template) should begin with BOS: what the file says,
  // and always for the vocabularies of Gemma, which produce nonsense without it.
  bool adds_bos() const;

 private:
  friend class StreamDecoder;
  std::unique_ptr<const TokenizerParts> parts_;
};

// Decodes token by token. Each string it returns is well-formed UTF-8: bytes of an incomplete
// character are held back until it is complete or can no longer become so (then U+FFFD). The joined
// output equals Tokenizer::decode. The tokenizer must outlive it; one thread at a time.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);

  std::string push(TokenId id);
  // What is still held back; the decoder is then ready for a new sequence.
  std::string flush();

 private:
  std::string strip_leading(std::string text);

  const TokenizerParts* parts_;
  bool skip_special_;
  bool first_ = true;  // no token has contributed yet
  size_t strip_left_;  // leading code points that may still be dropped
  Utf8Repairer repairer_;
};

// From the text of tokenizer.json and, if there is one, of tokenizer_config.json (else empty).
// Throws Error naming origin (the file's path) and the field. Only models of type BPE. A deliberate
// difference from the Python package: bytes that form no character give one U+FFFD for each maximal
// ill-formed part in byte-fallback files too, so that decoding can stream.
std::unique_ptr<Tokenizer> make_tokenizer_from_json(std::string_view tokenizer_json,
                                                    std::string_view tokenizer_config_json,
                                                    const std::string& origin);

// The tokenizer part of a GGUF file's metadata (tokenizer.ggml.*).
struct GgufVocabulary {
  std::string model;  // llama (SentencePiece scores), gpt2 (byte-level merges), gemma4 (merges)
  std::string pre;    // gpt2: which regular expression
  std::vector<std::string> tokens;
  std::vector<float> scores;   // llama: one a token
  std::vector<int32_t> types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;
  std::optional<TokenId> bos, eos, eot, unk, pad;
  std::optional<bool> add_bos, add_eos, add_space_prefix;  // add_eos has no effect
};

// Throws Error naming origin and the metadata key.
std::unique_ptr<Tokenizer> make_tokenizer_from_gguf(GgufVocabulary vocabulary,
                                                    const std::string& origin);

}  // namespace braid

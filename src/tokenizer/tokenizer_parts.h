#pragma once

#include <optional>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/vocabulary.h"

namespace braid {

// What a tokenizer is made of; the readers of the file formats fill it.
struct TokenizerParts {
  enum Flag : uint8_t { kAdded = 1, kSpecial = 2 };

  Vocabulary vocabulary;
  std::vector<uint8_t> flags;          // by id; see Flag
  AddedTokenMatcher raw_added;         // looked for in the raw text
  AddedTokenMatcher normalized_added;  // looked for in the normalised text
  NormalizerPtr normalizer;            // may be null
  PreTokenizerPtr pre_tokenizer;       // may be null
  std::optional<Bpe> bpe;
  TokenDecoder decoder;
  std::optional<TokenId> bos, eos, pad, unk;
  bool adds_bos = false;

  bool has_flag(TokenId id, Flag flag) const {
    return id >= 0 && static_cast<size_t>(id) < flags.size() && (flags[id] & flag) != 0;
  }

  // Registers a token that is already in the vocabulary.
  void add_token(const AddedToken& token) {
    if (flags.size() < static_cast<size_t>(vocabulary.size())) flags.resize(vocabulary.size());
    flags[token.id] |= kAdded | (token.special ? kSpecial : 0);
    if (token.normalized && normalizer) {
      normalized_added.add(normalizer->apply(token.content), token);
    } else if (token.normalized) {
      normalized_added.add(token.content, token);
    } else {
      raw_added.add(token.content, token);
    }
  }

  // Gemma's base models, too, need BOS, whatever the file says (its chat templates write it
  // themselves, so recent files declare that none is added).
  bool is_gemma_form() const { return bos && vocabulary.text(*bos) == "<bos>"; }
};

}  // namespace braid

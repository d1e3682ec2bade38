#include "engine/gguf_vocabulary.h"

#include <limits>

namespace braid {
namespace {

std::optional<TokenId> find_token(const GgufMetadata& metadata, const char* key,
                                  size_t num_tokens) {
  const auto id = metadata.find_integer(key);
  if (!id) return std::nullopt;
  if (*id < 0 || *id >= static_cast<int64_t>(num_tokens))
    metadata.fail(key, "is outside the vocabulary");
  return static_cast<TokenId>(*id);
}

}  // namespace

std::unique_ptr<Tokenizer> load_gguf_tokenizer(const GgufMetadata& metadata) {
  GgufVocabulary vocabulary;
  vocabulary.model = metadata.string("tokenizer.ggml.model");
  vocabulary.pre = metadata.find_string("tokenizer.ggml.pre").value_or("");
  auto tokens = metadata.find_strings("tokenizer.ggml.tokens");
  if (!tokens) metadata.fail("tokenizer.ggml.tokens", "is missing");
  vocabulary.tokens = std::move(*tokens);
  const size_t size = vocabulary.tokens.size();
  if (const auto scores = metadata.find_numbers("tokenizer.ggml.scores")) {
    if (scores->size() != size)
      metadata.fail("tokenizer.ggml.scores", "must have one entry a token");
    vocabulary.scores.assign(scores->begin(), scores->end());
  }
  if (const auto types = metadata.find_integers("tokenizer.ggml.token_type")) {
    if (types->size() != size)
      metadata.fail("tokenizer.ggml.token_type", "must have one entry a token");
    for (const int64_t type : *types) {
      if (type < 0 || type > std::numeric_limits<int32_t>::max()) {
        metadata.fail("tokenizer.ggml.token_type", "holds an unknown type");
      }
      vocabulary.types.push_back(static_cast<int32_t>(type));
    }
  }
  if (auto merges = metadata.find_strings("tokenizer.ggml.merges"))
    vocabulary.merges = std::move(*merges);
  vocabulary.bos = find_token(metadata, "tokenizer.ggml.bos_token_id", size);
  vocabulary.eos = find_token(metadata, "tokenizer.ggml.eos_token_id", size);
  vocabulary.eot = find_token(metadata, "tokenizer.ggml.eot_token_id", size);
  vocabulary.unk = find_token(metadata, "tokenizer.ggml.unknown_token_id", size);
  vocabulary.pad = find_token(metadata, "tokenizer.ggml.padding_token_id", size);
  vocabulary.add_bos = metadata.find_boolean("tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = metadata.find_boolean("tokenizer.ggml.add_eos_token");
  vocabulary.add_space_prefix = metadata.find_boolean("tokenizer.ggml.add_space_prefix");
  return make_tokenizer_from_gguf(std::move(vocabulary), metadata.origin);
}

}  // namespace braid

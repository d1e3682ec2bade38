#pragma once

#include "tokenizer/json_node.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_decoder.h"

namespace braid {

// The processing steps of a tokenizer.json. An unknown type or option is an Error that names it.
NormalizerPtr read_normalizer(const JsonNode& node);
PreTokenizerPtr read_pre_tokenizer(const JsonNode& node);
TokenDecoder read_decoder(const JsonNode& node);

}  // namespace braid

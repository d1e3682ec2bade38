#pragma once

#include <memory>

#include "checkpoint/gguf.h"
#include "tokenizer/tokenizer.h"

namespace braid {

// The tokenizer that a GGUF file's metadata describe. Throws Error naming the key that is missing
// or bad.
std::unique_ptr<Tokenizer> load_gguf_tokenizer(const GgufMetadata& metadata);

}  // namespace braid

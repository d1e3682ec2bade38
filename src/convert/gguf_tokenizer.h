#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/gguf_writer.h"
#include "checkpoint/model_files.h"

namespace braid {

// The tokenizer and chat template of a Hugging Face folder as tokenizer.ggml.* and
// tokenizer.chat_template. `vocabulary`: rows of the embedding; those without a token are filled up
// and listed among the tokens not to be sampled. A folder without tokenizer.json gives
// tokenizer.ggml.model "none". Throws Error for tokenizers that GGUF has no name for.
void add_gguf_tokenizer(const ModelFiles& files, const std::string& architecture,
                        int64_t vocabulary, GgufMetadataWriter& out);

}  // namespace braid

#pragma once

#include "checkpoint/gguf_writer.h"
#include "checkpoint/model_files.h"
#include "convert/gguf_layout.h"

namespace braid {

// The metadata of a GGUF file that is to hold the model: from config.json (sizes, rotary settings),
// generation_config.json (sampling) and the tokenizer's files, under llama.cpp's keys. Of a GGUF
// file: what it says, but for what is about its own storage. `file_type`: llama.cpp's number of the
// mix of formats. Throws Error for what GGUF has no way to say.
GgufMetadataWriter gguf_metadata(const ModelFiles& files, const GgufLayout& layout,
                                 int64_t file_type);

}  // namespace braid

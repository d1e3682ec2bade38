#pragma once

#include <map>
#include <string>

#include "checkpoint/model_files.h"

namespace braid {

// What a Hugging Face folder holds beside the weights, by file name: config.json, tokenizer.json,
// tokenizer_config.json, generation_config.json and, if the model has one, chat_template.jinja.
// Made of a GGUF file whose tensors have canonical names. Throws Error for families other than
// Gemma 3, and for tokenizers other than theirs.
std::map<std::string, std::string> hf_folder_texts(const ModelFiles& files);

// The name in such a folder of a tensor by its canonical name.
std::string hf_tensor_name(const std::string& canonical);
// What a GGUF file's values of a tensor are above those of the folder: 1 for Gemma 3's norms.
float hf_tensor_offset(const ModelFiles& files, const std::string& canonical);

}  // namespace braid

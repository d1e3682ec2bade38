#pragma once

#include <memory>

#include "checkpoint/model_files.h"
#include "tokenizer/tokenizer.h"

namespace braid {

// The tokenizer that a model's files describe, or null if they describe none. Throws Error naming
// the file and field that is wrong.
std::unique_ptr<Tokenizer> load_tokenizer(const ModelFiles& files);

// Says which file would provide the tokenizer that is not there.
[[noreturn]] void fail_without_tokenizer(const std::string& origin);

}  // namespace braid

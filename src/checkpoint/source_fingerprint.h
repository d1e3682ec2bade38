#pragma once

#include <cstdint>

#include "checkpoint/model_files.h"

namespace braid {

// What tells the files of a model from those of others, in a time that does not depend on their
// size: of the files with tensors, names, sizes, modification times, the list of tensors and some
// bytes of up to 64 of them, from all over the model; all bytes of the other files that are read
// (metadata, configs, tokenizers, templates).
uint64_t fingerprint(const ModelFiles& files);

}  // namespace braid

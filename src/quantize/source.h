#pragma once

#include <filesystem>

#include "checkpoint/model_files.h"
#include "quantize/quantizer.h"

namespace braid {

// The model that is to be quantised, as the options say: its files, or random weights of the
// config's shapes, which are filled in only if asked for. Throws Error for what cannot be
// quantised.
ModelFiles open_source(const std::filesystem::path& path, const QuantizeOptions& options,
                       bool fill = true);

}  // namespace braid

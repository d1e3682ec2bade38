#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "quantize/plan.h"

namespace braid {

// A mix of GGUF formats by the name that users of such files know.
struct GgufScheme {
  std::string_view name;  // "q4_k_m"
  FormatId base;          // of most matrices
  FormatId sensitive;     // of values and down projections, in some of the layers
  FormatId head;          // of the head, and of an embedding that is the head too
  int64_t file_type;      // llama.cpp's number (general.file_type)
};
// nullptr: there is none of that name.
const GgufScheme* find_gguf_scheme(std::string_view name);
std::vector<std::string_view> gguf_scheme_names();

// The format of a matrix: null for those that stay as they are (routers, gates).
const QuantFormat* gguf_format(const GgufScheme& scheme, const TensorPlan& matrix,
                               int64_t num_layers, bool tied_head);

// `format`, or the nearest one whose blocks divide rows of `cols`; null if there is none.
const QuantFormat* gguf_format_for_width(const QuantFormat& format, int64_t cols);

}  // namespace braid

#include "checkpoint/gguf_types.h"

#include <array>

#include "base/check.h"

namespace braid {
namespace {

GgufType readable(uint32_t id, FormatId format_id) {
  const QuantFormat& format = quant_format(format_id);
  return {id, format.name, format.block_elements, format.block_bytes, &format};
}

}  // namespace

// Ids and block sizes: ggml's enum ggml_type and GGML_QUANT_SIZES of its Python package gguf.
const GgufType* find_gguf_type(uint32_t id) {
  static const std::array kTypes = {
      readable(0, FormatId::kF32),
      readable(1, FormatId::kF16),
      readable(2, FormatId::kQ4_0),
      readable(3, FormatId::kQ4_1),
      readable(6, FormatId::kQ5_0),
      readable(7, FormatId::kQ5_1),
      readable(8, FormatId::kQ8_0),
      readable(10, FormatId::kQ2K),
      readable(11, FormatId::kQ3K),
      readable(12, FormatId::kQ4K),
      readable(13, FormatId::kQ5K),
      readable(14, FormatId::kQ6K),
      readable(20, FormatId::kIq4Nl),
      readable(30, FormatId::kBF16),
      GgufType{9, "q8_1", 32, 40, nullptr},
      GgufType{15, "q8_k", 256, 292, nullptr},
      GgufType{16, "iq2_xxs", 256, 66, nullptr},
      GgufType{17, "iq2_xs", 256, 74, nullptr},
      GgufType{18, "iq3_xxs", 256, 98, nullptr},
      GgufType{19, "iq1_s", 256, 50, nullptr},
      GgufType{21, "iq3_s", 256, 110, nullptr},
      GgufType{22, "iq2_s", 256, 82, nullptr},
      GgufType{23, "iq4_xs", 256, 136, nullptr},
      GgufType{24, "i8", 1, 1, nullptr},
      GgufType{25, "i16", 1, 2, nullptr},
      GgufType{26, "i32", 1, 4, nullptr},
      GgufType{27, "i64", 1, 8, nullptr},
      GgufType{28, "f64", 1, 8, nullptr},
      GgufType{29, "iq1_m", 256, 56, nullptr},
      GgufType{34, "tq1_0", 256, 54, nullptr},
      GgufType{35, "tq2_0", 256, 66, nullptr},
      GgufType{39, "mxfp4", 32, 17, nullptr},
      GgufType{40, "nvfp4", 64, 36, nullptr},
  };
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

}  // namespace braid

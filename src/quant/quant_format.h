#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace braid {

// How the elements of a row are stored. A row is a whole number of blocks, in some formats after a
// header of its own; nothing else refers to the layout, so a new format is a new descriptor with
// its pack and unpack functions (quant/schemes/).
enum class FormatId : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kIq4Nl,
  kQ2K,
  kQ3K,
  kQ4K,
  kQ5K,
  kQ6K,
  // Groups of 4-bit codes with a bfloat16 scale (quant/group_format.h) ...
  kW4G32,
  kW4G64,
  kW4G128,
  kW4G32Asym,
  kW4G64Asym,
  kW4G128Asym,
  // ... or a float32 one, for scales of files that are no bfloat16 numbers.
  kW4G32F32,
  kW4G64F32,
  kW4G128F32,
  kW4G32AsymF32,
  kW4G64AsymF32,
  kW4G128AsymF32,
  // Rows of int8 codes with one scale (quant/channel_format.h).
  kW8C,
};
inline constexpr int kNumFormats = static_cast<int>(FormatId::kW8C) + 1;

struct QuantFormat {
  FormatId id;
  std::string_view name;  // as GGUF tools write it, lower case: "q4_0", "q4_k", "bf16"; of formats
                          // that GGUF lacks: "w4g128", "w4g32_asym", "w8c"
  int block_elements;     // 1 for plain elements
  int block_bytes;
  int row_header_bytes = 0;  // before the blocks of each row, a multiple of 4
  int panel_rows = 1;  // rows of a matrix that lie interleaved (quant/panels.h); 1: row after row

  bool plain() const { return block_elements == 1; }
  bool panels() const { return panel_rows > 1; }
  bool has_row_header() const { return row_header_bytes > 0; }
  // Bytes of a row of `elements`, which must be a multiple of block_elements; in panels: a row's
  // share.
  int64_t row_bytes(int64_t elements) const {
    return row_header_bytes + elements / block_elements * block_bytes;
  }
};

const QuantFormat& quant_format(FormatId id);
// Looks a format up by name; nullptr if unknown.
const QuantFormat* find_quant_format(std::string_view name);

// Expands `elements` (a multiple of block_elements) stored at `blocks`, not in panels, into
// float32. Formats with a row header: exactly one row. Scalar code: the definition that every
// kernel is tested against.
void dequantize(const QuantFormat& format, const void* blocks, int64_t elements, float* out);

// Rounds float32 values to the nearest representable blocks. For plain formats, q8_0, q4_0, q4_1,
// q5_0, q5_1, iq4_nl, and the w4 and w8 formats (round-to-nearest reference quantisers); throws
// Error for others. Formats with a row header: exactly one row.
void quantize(const QuantFormat& format, const float* values, int64_t elements, void* blocks);
bool can_quantize(const QuantFormat& format);

}  // namespace braid

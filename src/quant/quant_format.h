#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace braid {

// How the elements of a row are stored. A row is a whole number of blocks; nothing else refers to
// the layout, so a new format is a new descriptor with its pack and unpack functions
// (quant/schemes/).
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
};
inline constexpr int kNumFormats = static_cast<int>(FormatId::kQ6K) + 1;

struct QuantFormat {
  FormatId id;
  std::string_view name;  // as GGUF tools write it, lower case: "q4_0", "q4_k", "bf16"
  int block_elements;     // 1 for plain elements
  int block_bytes;
  int panel_rows = 1;  // rows of a matrix that lie interleaved (quant/panels.h); 1: row after row

  bool plain() const { return block_elements == 1; }
  bool panels() const { return panel_rows > 1; }
  // Bytes of a row of `elements`, which must be a multiple of block_elements; in panels: a row's
  // share.
  int64_t row_bytes(int64_t elements) const { return elements / block_elements * block_bytes; }
};

const QuantFormat& quant_format(FormatId id);
// Looks a format up by name; nullptr if unknown.
const QuantFormat* find_quant_format(std::string_view name);

// Expands `elements` (a multiple of block_elements) stored at `blocks`, not in panels, into
// float32. Scalar code: the definition that every kernel is tested against.
void dequantize(const QuantFormat& format, const void* blocks, int64_t elements, float* out);

// Rounds float32 values to the nearest representable blocks. For plain formats and q8_0, q4_0,
// q4_1, q5_0, q5_1 and iq4_nl (round-to-nearest reference quantisers); throws Error for others.
void quantize(const QuantFormat& format, const float* values, int64_t elements, void* blocks);
bool can_quantize(const QuantFormat& format);

}  // namespace braid

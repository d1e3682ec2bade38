#include "quant/quant_format.h"

#include "base/check.h"
#include "base/error.h"
#include "quant/schemes/schemes.h"

namespace braid {
namespace {

struct Scheme {
  QuantFormat format;
  DequantizeFunction dequantize;
  QuantizeFunction quantize;  // nullptr: read only
};

// In the order of FormatId.
template <typename Block>
constexpr Scheme group_scheme(FormatId id, std::string_view name) {
  return {{id, name, Block::kGroup, sizeof(Block)}, dequantize_w4<Block>, quantize_w4<Block>};
}

constexpr Scheme kSchemes[kNumFormats] = {
    {{FormatId::kF32, "f32", 1, 4}, dequantize_f32, quantize_f32},
    {{FormatId::kF16, "f16", 1, 2}, dequantize_f16, quantize_f16},
    {{FormatId::kBF16, "bf16", 1, 2}, dequantize_bf16, quantize_bf16},
    {{FormatId::kQ8_0, "q8_0", 32, sizeof(BlockQ8_0)}, dequantize_q8_0, quantize_q8_0},
    {{FormatId::kQ4_0, "q4_0", 32, sizeof(BlockQ4_0)}, dequantize_q4_0, quantize_q4_0},
    {{FormatId::kQ4_1, "q4_1", 32, sizeof(BlockQ4_1)}, dequantize_q4_1, quantize_q4_1},
    {{FormatId::kQ5_0, "q5_0", 32, sizeof(BlockQ5_0)}, dequantize_q5_0, quantize_q5_0},
    {{FormatId::kQ5_1, "q5_1", 32, sizeof(BlockQ5_1)}, dequantize_q5_1, quantize_q5_1},
    {{FormatId::kIq4Nl, "iq4_nl", 32, sizeof(BlockIq4Nl)}, dequantize_iq4_nl, quantize_iq4_nl},
    {{FormatId::kQ2K, "q2_k", 256, sizeof(BlockQ2K)}, dequantize_q2_k, nullptr},
    {{FormatId::kQ3K, "q3_k", 256, sizeof(BlockQ3K)}, dequantize_q3_k, nullptr},
    {{FormatId::kQ4K, "q4_k", 256, sizeof(BlockQ4K)}, dequantize_q4_k, nullptr},
    {{FormatId::kQ5K, "q5_k", 256, sizeof(BlockQ5K)}, dequantize_q5_k, nullptr},
    {{FormatId::kQ6K, "q6_k", 256, sizeof(BlockQ6K)}, dequantize_q6_k, nullptr},
    group_scheme<BlockW4<32, BFloat16Bytes>>(FormatId::kW4G32, "w4g32"),
    group_scheme<BlockW4<64, BFloat16Bytes>>(FormatId::kW4G64, "w4g64"),
    group_scheme<BlockW4<128, BFloat16Bytes>>(FormatId::kW4G128, "w4g128"),
    group_scheme<BlockW4Asym<32, BFloat16Bytes>>(FormatId::kW4G32Asym, "w4g32_asym"),
    group_scheme<BlockW4Asym<64, BFloat16Bytes>>(FormatId::kW4G64Asym, "w4g64_asym"),
    group_scheme<BlockW4Asym<128, BFloat16Bytes>>(FormatId::kW4G128Asym, "w4g128_asym"),
    group_scheme<BlockW4<32, Float32Bytes>>(FormatId::kW4G32F32, "w4g32_f32"),
    group_scheme<BlockW4<64, Float32Bytes>>(FormatId::kW4G64F32, "w4g64_f32"),
    group_scheme<BlockW4<128, Float32Bytes>>(FormatId::kW4G128F32, "w4g128_f32"),
    group_scheme<BlockW4Asym<32, Float32Bytes>>(FormatId::kW4G32AsymF32, "w4g32_asym_f32"),
    group_scheme<BlockW4Asym<64, Float32Bytes>>(FormatId::kW4G64AsymF32, "w4g64_asym_f32"),
    group_scheme<BlockW4Asym<128, Float32Bytes>>(FormatId::kW4G128AsymF32, "w4g128_asym_f32"),
    {{FormatId::kW8C, "w8c", kW8CBlock, kW8CBlock, sizeof(RowHeaderW8C)},
     dequantize_w8c,
     quantize_w8c},
};

constexpr bool in_order() {
  for (int i = 0; i < kNumFormats; ++i) {
    if (static_cast<int>(kSchemes[i].format.id) != i) return false;
  }
  return true;
}
static_assert(in_order());

const Scheme& scheme_of(const QuantFormat& format) { return kSchemes[static_cast<int>(format.id)]; }

int64_t count_blocks(const QuantFormat& format, int64_t elements) {
  BRAID_CHECK(elements % format.block_elements == 0 && !format.panels(), "{} elements of {}",
              elements, format.name);
  return elements / format.block_elements;
}

}  // namespace

const QuantFormat& quant_format(FormatId id) { return kSchemes[static_cast<int>(id)].format; }

const QuantFormat* find_quant_format(std::string_view name) {
  for (const Scheme& scheme : kSchemes) {
    if (scheme.format.name == name) return &scheme.format;
  }
  return nullptr;
}

void dequantize(const QuantFormat& format, const void* blocks, int64_t elements, float* out) {
  scheme_of(format).dequantize(blocks, count_blocks(format, elements), out);
}

void quantize(const QuantFormat& format, const float* values, int64_t elements, void* blocks) {
  if (!can_quantize(format)) {
    throw Error("format {}: braid reads it but cannot write it; use q8_0, q5_1 or q4_0",
                format.name);
  }
  scheme_of(format).quantize(values, count_blocks(format, elements), blocks);
}

bool can_quantize(const QuantFormat& format) { return scheme_of(format).quantize != nullptr; }

}  // namespace braid

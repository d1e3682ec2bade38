#include <cstddef>

#include "ops/linear/block_math.h"
#include "ops/linear/float_tile.h"
#include "quant/schemes/block_layouts.h"

namespace braid::BRAID_ISA {
namespace {

template <typename Kind>
BRAID_INLINE void load_scales_and_mins(const RowGroup& rows, int64_t offset, CodeBlock<Kind>* out) {
  Vu head[4];
  transpose16(rows, offset, head);
  q4_k_scales(
      head, [&](auto s, Vf scale, Vf min) __attribute__((always_inline)) {
        out[s.value].scale[0] = scale;
        out[s.value].min[0] = min;
      });
}

struct Q4KDecoder {
  using Kind = CodeKind<false, 15, 1, true, 0>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ4K), kSubBlocks = 8;
  [[gnu::noinline]] static void decode(const RowGroup& rows, int64_t offset, CodeBlock<Kind>* out) {
    load_scales_and_mins(rows, offset, out);
    for (int s = 0; s < 8; s += 2) {
      Vu words[8];
      transpose32(rows, offset + offsetof(BlockQ4K, q) + 16 * s, words);
      unroll<0, 8>(BRAID_UNROLLED(i) {
        out[s].codes[i.value] = words[i.value] & 0x0f0f0f0f;
        out[s + 1].codes[i.value] = (words[i.value] >> 4) & 0x0f0f0f0f;
      });
    }
  }
};

struct Q5KDecoder {
  using Kind = CodeKind<false, 31, 1, true, 0>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ5K), kSubBlocks = 8;
  [[gnu::noinline]] static void decode(const RowGroup& rows, int64_t offset, CodeBlock<Kind>* out) {
    load_scales_and_mins(rows, offset, out);
    Vu high[8];
    transpose32(rows, offset + offsetof(BlockQ5K, high), high);
    for (int s = 0; s < 8; s += 2) {
      Vu words[8];
      transpose32(rows, offset + offsetof(BlockQ5K, q) + 16 * s, words);
      unroll<0, 8>(BRAID_UNROLLED(i) {
        const Vu bits = high[i.value] >> s;
        out[s].codes[i.value] = (words[i.value] & 0x0f0f0f0f) | ((bits & 0x01010101) << 4);
        out[s + 1].codes[i.value] =
            ((words[i.value] >> 4) & 0x0f0f0f0f) | ((bits & 0x02020202) << 3);
      });
    }
  }
};

struct Q2KDecoder {
  using Kind = CodeKind<false, 3, 2, true, 0>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ2K), kSubBlocks = 8;
  [[gnu::noinline]] static void decode(const RowGroup& rows, int64_t offset, CodeBlock<Kind>* out) {
    Vu scales[4];
    transpose16(rows, offset + offsetof(BlockQ2K, scales), scales);
    Vf d, dmin;
    split_halves(load_words(rows, offset + offsetof(BlockQ2K, d)), d, dmin);
    q2_k_scales(
        scales, d, dmin, [&](auto g, Vf scale, Vf min) __attribute__((always_inline)) {
          out[g.value / 2].scale[g.value % 2] = scale;
          out[g.value / 2].min[g.value % 2] = min;
        });
    for (int half = 0; half < 2; ++half) {
      Vu words[8];
      transpose32(rows, offset + offsetof(BlockQ2K, q) + 32 * half, words);
      for (int s = 0; s < 4; ++s) {
        unroll<0, 8>(BRAID_UNROLLED(i) {
          out[4 * half + s].codes[i.value] = (words[i.value] >> (2 * s)) & 0x03030303;
        });
      }
    }
  }
};

struct Q3KDecoder {
  using Kind = CodeKind<false, 7, 2, false, 2>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ3K), kSubBlocks = 8;
  [[gnu::noinline]] static void decode(const RowGroup& rows, int64_t offset, CodeBlock<Kind>* out) {
    // The last 16 bytes: two of q, the twelve of scales, d.
    Vu tail[4];
    transpose16(rows, offset + kBlockBytes - 16, tail);
    Vf unused, d;
    split_halves(tail[3], unused, d);
    const Vu packed[3] = {(tail[0] >> 16) | (tail[1] << 16), (tail[1] >> 16) | (tail[2] << 16),
                          (tail[2] >> 16) | (tail[3] << 16)};
    q3_k_scales(
        packed, d, [&](auto g, Vf scale) __attribute__((always_inline)) {
          out[g.value / 2].scale[g.value % 2] = scale;
        });
    Vu high[8];
    transpose32(rows, offset + offsetof(BlockQ3K, high), high);
    for (int half = 0; half < 2; ++half) {
      Vu words[8];
      transpose32(rows, offset + offsetof(BlockQ3K, q) + 32 * half, words);
      for (int s = 0; s < 4; ++s) {
        unroll<0, 8>(BRAID_UNROLLED(i) {
          const Vu top = (high[i.value] >> (4 * half + s)) & 0x01010101;
          out[4 * half + s].codes[i.value] =
              ((words[i.value] >> (2 * s)) & 0x03030303) | (top << 2);
        });
      }
    }
  }
};

struct Q6KDecoder {
  using Kind = CodeKind<false, 63, 2, false, 5>;
  using Rows = RowGroup;
  static constexpr int kBlockBytes = sizeof(BlockQ6K), kSubBlocks = 8;
  [[gnu::noinline]] static void decode(const RowGroup& rows, int64_t offset, CodeBlock<Kind>* out) {
    Vu scales[4];
    transpose16(rows, offset + offsetof(BlockQ6K, scales), scales);
    const Vf d = load_halves(rows, offset + offsetof(BlockQ6K, d));
    q6_k_scales(
        scales, d, [&](auto g, Vf scale) __attribute__((always_inline)) {
          out[g.value / 2].scale[g.value % 2] = scale;
        });
    for (int half = 0; half < 2; ++half) {
      Vu high[8];
      transpose32(rows, offset + offsetof(BlockQ6K, high) + 32 * half, high);
      for (int plane = 0; plane < 2; ++plane) {  // its nibbles: sub-blocks `plane` and `plane` + 2
        Vu low[8];
        transpose32(rows, offset + 64 * half + 32 * plane, low);
        CodeBlock<Kind>* const block = out + 4 * half + plane;
        unroll<0, 8>(BRAID_UNROLLED(i) {
          const Vu bits = high[i.value] >> (2 * plane);
          block[0].codes[i.value] = (low[i.value] & 0x0f0f0f0f) | ((bits & 0x03030303) << 4);
          block[2].codes[i.value] = ((low[i.value] >> 4) & 0x0f0f0f0f) | (bits & 0x30303030);
        });
      }
    }
  }
};

template <typename Decoder>
constexpr void add_format(LinearKernels& table, FormatId id) {
  table.f32[static_cast<int>(id)] = float_kernel<Decoder>;
  table.int8[static_cast<int>(id)] = int8_kernel<Decoder>;
}

constexpr LinearKernels make_table() {
  LinearKernels table{};
  add_format<Q2KDecoder>(table, FormatId::kQ2K);
  add_format<Q3KDecoder>(table, FormatId::kQ3K);
  add_format<Q4KDecoder>(table, FormatId::kQ4K);
  add_format<Q5KDecoder>(table, FormatId::kQ5K);
  add_format<Q6KDecoder>(table, FormatId::kQ6K);
  return table;
}

}  // namespace

const LinearKernels kKQuantKernels = make_table();

}  // namespace braid::BRAID_ISA

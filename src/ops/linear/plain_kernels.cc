#include "ops/linear/float_tile.h"

namespace braid::BRAID_ISA {
namespace {

struct F32Loader {
  using Step = FloatStep;
  static constexpr int kUnitColumns = 16;
  static constexpr int kUnitBytes = 64;
  static constexpr bool kDirect = true;
  [[gnu::always_inline]] static void load(const RowGroup& rows, int64_t offset, Vf* out) {
    unroll<0, 4>(BRAID_UNROLLED(i) {
      Vu words[4];
      transpose16(rows, offset + 16 * i.value, words);
      unroll<0, 4>(BRAID_UNROLLED(j) { out[4 * i.value + j.value] = (Vf)words[j.value]; });
    });
  }
};

struct F16Loader {
  using Step = FloatStep;
  static constexpr int kUnitColumns = 32;
  static constexpr int kUnitBytes = 64;
  static constexpr bool kDirect = true;
  [[gnu::always_inline]] static void load(const RowGroup& rows, int64_t offset, Vf* out) {
    unroll<0, 4>(BRAID_UNROLLED(i) {
      Vu words[4];
      transpose16(rows, offset + 16 * i.value, words);
      unroll<0, 4>(BRAID_UNROLLED(j) {
        constexpr int k = 8 * i.value + 2 * j.value;
        split_halves(words[j.value], out[k], out[k + 1]);
      });
    });
  }
};

struct Bf16Loader {
  using Step = FloatStep;
  static constexpr int kUnitColumns = 32;
  static constexpr int kUnitBytes = 64;
  static constexpr bool kDirect = true;
  [[gnu::always_inline]] static void load(const RowGroup& rows, int64_t offset, Vf* out) {
    unroll<0, 4>(BRAID_UNROLLED(i) {
      Vu words[4];
      transpose16(rows, offset + 16 * i.value, words);
      unroll<0, 4>(BRAID_UNROLLED(j) {
        constexpr int k = 8 * i.value + 2 * j.value;
        out[k] = (Vf)(words[j.value] << 16);
        out[k + 1] = (Vf)(words[j.value] & 0xffff0000);
      });
    });
  }
};

#if defined(BRAID_ISA_avx512)
struct Bf16PairLoader {
  using Step = PairStep;
  static constexpr int kUnitColumns = 32;
  static constexpr int kUnitBytes = 64;
  static constexpr bool kDirect = true;
  [[gnu::always_inline]] static void load(const RowGroup& rows, int64_t offset, Vu* out) {
    unroll<0, 4>(
        BRAID_UNROLLED(i) { transpose16(rows, offset + 16 * i.value, out + 4 * i.value); });
  }
};
#endif

constexpr LinearKernels make_table() {
  LinearKernels table{};
  table.f32[static_cast<int>(FormatId::kF32)] = float_kernel<F32Loader>;
  table.f32[static_cast<int>(FormatId::kF16)] = float_kernel<F16Loader>;
  table.f32[static_cast<int>(FormatId::kBF16)] = float_kernel<Bf16Loader>;
#if defined(BRAID_ISA_avx512)
  table.packed[static_cast<int>(FormatId::kBF16)] = float_kernel<Bf16PairLoader>;
#endif
  return table;
}

}  // namespace

const LinearKernels kPlainKernels = make_table();

}  // namespace braid::BRAID_ISA

#include "ops/linear/row_dot.h"

namespace braid::BRAID_ISA {
namespace {

constexpr LinearKernels make_table() {
  LinearKernels table{};
  table.f32[static_cast<int>(FormatId::kF32)] = dot_kernel<FloatStep<float>>;
  table.f32[static_cast<int>(FormatId::kF16)] = dot_kernel<FloatStep<Float16>>;
  table.f32[static_cast<int>(FormatId::kBF16)] = dot_kernel<FloatStep<BFloat16>>;
#if defined(BRAID_ISA_avx512)
  table.packed[static_cast<int>(FormatId::kBF16)] = dot_kernel<PairStep>;
#endif
  return table;
}

}  // namespace

const LinearKernels kPlainKernels = make_table();

}  // namespace braid::BRAID_ISA

#pragma once

#include "base/cpu_features.h"

namespace braid {

// How CPU kernels exist once per instruction set. A kernel file (ISA_SOURCES in CMake) is compiled
// for each; it puts everything into `namespace braid::BRAID_ISA` and defines one table of function
// pointers:
//
//   // rms_norm_kernels.h                       // rms_norm_kernels.cc, compiled three times
//   struct RmsNormKernels { void (*rows)(…); }; namespace braid::BRAID_ISA {
//   BRAID_DECLARE_KERNELS(RmsNormKernels,         const RmsNormKernels kRmsNormKernels = {…};
//                         kRmsNormKernels)       }
//
// and the op picks its table with BRAID_KERNELS(kRmsNormKernels) at each call. Kernel files must
// not instantiate templates of the standard library or call inline functions of shared headers
// (other than always_inline ones): the linker keeps one copy of such a function, perhaps the
// AVX-512 one.
#define BRAID_DECLARE_KERNELS(Type, table) \
  namespace portable {                     \
  extern const Type table;                 \
  }                                        \
  namespace avx2 {                         \
  extern const Type table;                 \
  }                                        \
  namespace avx512 {                       \
  extern const Type table;                 \
  }

#define BRAID_KERNELS(table)                                               \
  (::braid::active_isa() == ::braid::Isa::kAvx512 ? ::braid::avx512::table \
   : ::braid::active_isa() == ::braid::Isa::kAvx2 ? ::braid::avx2::table   \
                                                  : ::braid::portable::table)

}  // namespace braid

#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"
#include "quant/quant_format.h"

namespace braid {

// One matrix and its inputs, as kernels see them. Strides count elements.
struct LinearTask {
  const uint8_t* weights;
  int64_t row_bytes;  // in panels: a row's share
  int64_t rows;
  int64_t cols;
  const float* x;
  int64_t x_stride;
  const BFloat16* packed;  // as LinearInput's views; null unless the precision has them
  int64_t packed_stride;
  const int8_t* codes;
  const float* scales;
  const int32_t* sums;
  float* y;
  int64_t y_stride;
  const void* token_codes;    // as TokenInputKernels packs them
  const float* token_scales;  // one a token
};

// Computes y[t, r] for rows [row_begin, row_end) and tokens [token_begin, token_end).
struct LinearRange {
  int64_t row_begin, row_end;
  int64_t token_begin, token_end;
};
using LinearKernel = void (*)(const LinearTask& task, const LinearRange& range);

// By FormatId. A table holds one family's formats; other entries are null.
struct LinearKernels {
  LinearKernel f32[kNumFormats];     // × LinearTask::x
  LinearKernel packed[kNumFormats];  // × LinearTask::packed; null where f32 is to be used
  LinearKernel int8[kNumFormats];    // × LinearTask::codes; w8c: token_codes
};

struct InputKernels {
  // One row of LinearInput::codes, scales and sums. cols is a multiple of 32.
  void (*quantize)(const float* x, int64_t cols, int8_t* codes, float* scales, int32_t* sums);
  // Rounds to bfloat16. `packed` may be null; it has an even number of elements.
  void (*round_to_bfloat16)(const float* x, int64_t cols, float* rounded, BFloat16* packed);
  bool uses_packed;  // this instruction set has kernels for LinearTask::packed
};

struct TokenInputKernels {
  // One row of LinearInput::token_codes, token_packed and token_scales. cols is a multiple of 32.
  void (*quantize)(const float* x, int64_t cols, int8_t* codes, void* packed, float* scale);
  int packed_bytes;  // of a code
};

BRAID_DECLARE_KERNELS(LinearKernels, kPlainKernels)
BRAID_DECLARE_KERNELS(LinearKernels, kSimpleBlockKernels)
BRAID_DECLARE_KERNELS(LinearKernels, kKQuantKernels)
BRAID_DECLARE_KERNELS(LinearKernels, kSimplePanelKernels)  // GGUF's block formats, in panels
BRAID_DECLARE_KERNELS(LinearKernels, kKPanelKernels)
BRAID_DECLARE_KERNELS(LinearKernels, kGroupKernels)  // the w4 formats
BRAID_DECLARE_KERNELS(LinearKernels, kGroupPanelKernels)
BRAID_DECLARE_KERNELS(LinearKernels, kChannelKernels)  // w8c
BRAID_DECLARE_KERNELS(LinearKernels, kChannelPanelKernels)
BRAID_DECLARE_KERNELS(TokenInputKernels, kTokenInputKernels)
BRAID_DECLARE_KERNELS(InputKernels, kInputKernels)

}  // namespace braid

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/tensor_map.h"
#include "tensor/cuda/cuda_check.h"

namespace braid::cuda {
namespace {

// Of the driver, which programs are not linked to.
PFN_cuTensorMapEncodeTiled_v12000 find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  BRAID_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                    cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    call_failed(__FILE__, __LINE__, "cuTensorMapEncodeTiled", "the driver does not have it");
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

CUtensorMap make_tensor_map(const void* matrix, int64_t rows, int64_t cols, int64_t stride,
                            int box_rows) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), sizes, row_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  BRAID_CHECK(result == CUDA_SUCCESS, "a tensor map of [{}, {}], box of {} rows: error {}", rows,
              cols, box_rows, static_cast<int>(result));
  return map;
}

}  // namespace braid::cuda

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

CUtensorMap encode(const void* matrix, int dimensions, const cuuint64_t* sizes,
                   const cuuint64_t* strides, const cuuint32_t* box, CUtensorMapSwizzle swizzle) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode_tiled = find_encode();
  constexpr cuuint32_t kSteps[] = {1, 1, 1};
  CUtensorMap map{};
  const CUresult result = encode_tiled(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(dimensions),
      const_cast<void*>(matrix), sizes, strides, box, kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  BRAID_CHECK(result == CUDA_SUCCESS, "a tensor map of [{}, {}], box of {} rows: error {}",
              sizes[1], sizes[0], box[1], static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(const void* matrix, int64_t rows, int64_t cols, int64_t stride,
                            int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)};
  return encode(matrix, 2, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap make_chunk_map(const void* matrix, int64_t rows, int64_t cols, int64_t stride,
                           int box_rows, int box_chunks) {
  const cuuint64_t sizes[] = {kChunkColumns, static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(cols / kChunkColumns)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2, kChunkColumns * 2};
  const cuuint32_t box[] = {kChunkColumns, static_cast<cuuint32_t>(box_rows),
                            static_cast<cuuint32_t>(box_chunks)};
  return encode(matrix, 3, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace braid::cuda

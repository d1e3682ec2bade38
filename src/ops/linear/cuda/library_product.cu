#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "ops/cuda/alignment.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/products.h"

namespace braid::cuda {
namespace {

// Of the library workspace, for weights that must be expanded first: small enough to stay in the
// second-level cache until the product has read them.
constexpr size_t kExpandedBytes = size_t{16} << 20;

// y (column-major [rows, tokens]) = w (column-major [cols, rows], transposed) · x ([cols, tokens]).
struct Shape {
  int device;
  bool bfloat16;
  int rows, cols, tokens;
  int64_t x_stride, y_stride;
  uint32_t w_alignment, x_alignment, y_alignment;
  size_t workspace;

  bool operator<(const Shape& other) const { return key() < other.key(); }

 private:
  std::tuple<int, bool, int, int, int, int64_t, int64_t, uint32_t, uint32_t, uint32_t, size_t> key()
      const {
    return {device,   bfloat16,    rows,        cols,        tokens,   x_stride,
            y_stride, w_alignment, x_alignment, y_alignment, workspace};
  }
};

// What the library chose for a shape. Its handles are small and stay for good.
struct Choice {
  bool usable = false;
  cublasLtMatmulDesc_t product{};
  cublasLtMatrixLayout_t w{}, x{}, y{};
  cublasLtMatmulAlgo_t algorithm{};
};

Choice choose(cublasLtHandle_t library, const Shape& shape) {
  Choice choice;
  const cudaDataType_t type = shape.bfloat16 ? CUDA_R_16BF : CUDA_R_32F;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  cublasLtMatmulPreference_t preference{};
  bool good =
      cublasLtMatmulDescCreate(&choice.product, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
          CUBLAS_STATUS_SUCCESS &&
      cublasLtMatmulDescSetAttribute(choice.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                     sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
      cublasLtMatrixLayoutCreate(&choice.w, type, shape.cols, shape.rows, shape.cols) ==
          CUBLAS_STATUS_SUCCESS &&
      cublasLtMatrixLayoutCreate(&choice.x, type, shape.cols, shape.tokens, shape.x_stride) ==
          CUBLAS_STATUS_SUCCESS &&
      cublasLtMatrixLayoutCreate(&choice.y, CUDA_R_32F, shape.rows, shape.tokens, shape.y_stride) ==
          CUBLAS_STATUS_SUCCESS &&
      cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    good = good && cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                        sizeof(value)) == CUBLAS_STATUS_SUCCESS;
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{shape.workspace});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.w_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.x_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.y_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.y_alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  if (good && cublasLtMatmulAlgoGetHeuristic(library, choice.product, choice.w, choice.x, choice.y,
                                             choice.y, preference, 1, &found,
                                             &count) == CUBLAS_STATUS_SUCCESS) {
    choice.usable = count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    choice.algorithm = found.algo;
  }
  if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
  return choice;
}

const Choice& cached_choice(cublasLtHandle_t library, const Shape& shape) {
  static std::mutex mutex;
  static std::map<Shape, Choice> choices;
  const std::lock_guard lock(mutex);
  const auto found = choices.find(shape);
  if (found != choices.end()) return found->second;
  return choices.emplace(shape, choose(library, shape)).first->second;
}

}  // namespace

bool library_products(Stream& stream, const Products& p) {
  StreamState& state = stream.cuda();
  const auto library = static_cast<cublasLtHandle_t>(state.matrix_library());
  const bool bfloat16 = p.packed != nullptr && p.format != FormatId::kF32;
  // Exact products of rounded inputs are for the caller's own kernel.
  if (!bfloat16 && p.packed != nullptr) return false;
  const bool direct = p.format == (bfloat16 ? FormatId::kBF16 : FormatId::kF32);
  if (!direct && p.cols % kPackedColumns % 32 != 0) return false;

  const std::span<std::byte> memory = state.library_workspace();
  std::byte* const expanded = memory.data();
  std::byte* const workspace = memory.data() + kExpandedBytes;
  const size_t workspace_bytes = memory.size() - kExpandedBytes;
  const int64_t row_bytes = int64_t{p.cols} * (bfloat16 ? 2 : 4);
  const int piece =
      direct ? p.rows
             : static_cast<int>(std::min<int64_t>(
                   p.rows, static_cast<int64_t>(kExpandedBytes) / row_bytes / 128 * 128));
  if (piece == 0) return false;

  const void* const x = bfloat16 ? static_cast<const void*>(p.packed) : p.x;
  for (int first = 0; first < p.rows; first += piece) {
    const int count = std::min(piece, p.rows - first);
    const void* const w =
        direct ? p.weights + first * p.row_bytes : reinterpret_cast<const uint8_t*>(expanded);
    float* const y = p.y + first;
    const Shape shape{state.device(),  bfloat16,        count,
                      p.cols,          p.tokens,        bfloat16 ? p.packed_stride : p.x_stride,
                      p.y_stride,      alignment_of(w), alignment_of(x),
                      alignment_of(y), workspace_bytes};
    const Choice& choice = cached_choice(library, shape);
    if (!choice.usable) {
      BRAID_CHECK(first == 0, "the matrix library refuses a part of a product that it took");
      return false;
    }
    if (!direct && bfloat16)
      expand_rows(stream, p, first, count, reinterpret_cast<uint16_t*>(expanded));
    if (!direct && !bfloat16)
      expand_rows(stream, p, first, count, reinterpret_cast<float*>(expanded));
    const float one = 1, zero = 0;
    const cublasStatus_t status =
        cublasLtMatmul(library, choice.product, &one, w, choice.w, x, choice.x, &zero, y, choice.y,
                       y, choice.y, &choice.algorithm, workspace, workspace_bytes, state.handle());
    if (status != CUBLAS_STATUS_SUCCESS) {
      call_failed(__FILE__, __LINE__, "cublasLtMatmul", cublasLtGetStatusString(status));
    }
  }
  return true;
}

}  // namespace braid::cuda

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "ops/cuda/alignment.h"
#include "ops/cuda/launch.cuh"
#include "quantize/cuda/matrix_library.h"

namespace braid::cuda {
namespace {

// What tells one choice of the library's from another.
using Key = std::array<int64_t, 13>;

// The library counts along columns, so rows that lie one after the other are columns of the
// transposed matrix: Cᵀ = Bᵀ·Aᵀ. Its handles are small and stay for good.
struct Choice {
  cublasLtMatmulDesc_t product{};
  cublasLtMatrixLayout_t first{}, second{}, result{};
  cublasLtMatmulAlgo_t algorithm{};
};

void check(cublasStatus_t status, int line, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    call_failed(__FILE__, line, call, cublasLtGetStatusString(status));
  }
}
#define BRAID_LIBRARY_CHECK(call) check(call, __LINE__, #call)

Choice choose(cublasLtHandle_t library, const DeviceProduct& p, size_t workspace_bytes) {
  const bool f64 = p.type == ProductType::kF64, bf16 = p.type == ProductType::kBF16;
  const cudaDataType_t sums = f64 ? CUDA_R_64F : CUDA_R_32F;
  const cudaDataType_t inputs = bf16 ? CUDA_R_16BF : sums;
  const cublasComputeType_t compute = f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  const cublasOperation_t first = p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  Choice choice;
  BRAID_LIBRARY_CHECK(cublasLtMatmulDescCreate(&choice.product, compute, sums));
  BRAID_LIBRARY_CHECK(cublasLtMatmulDescSetAttribute(choice.product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                     &first, sizeof(first)));
  BRAID_LIBRARY_CHECK(cublasLtMatmulDescSetAttribute(choice.product, CUBLASLT_MATMUL_DESC_TRANSB,
                                                     &second, sizeof(second)));
  const auto layout = [](cublasLtMatrixLayout_t& made, cudaDataType_t type, bool transposed,
                         int64_t rows, int64_t cols, int64_t stride) {
    if (transposed) std::swap(rows, cols);
    BRAID_LIBRARY_CHECK(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(cols),
                                                   static_cast<uint64_t>(rows), stride));
  };
  layout(choice.first, inputs, p.b_transposed, p.depth, p.cols, p.b_stride);
  layout(choice.second, inputs, p.a_transposed, p.rows, p.depth, p.a_stride);
  layout(choice.result, sums, false, p.rows, p.cols, p.c_stride);

  cublasLtMatmulPreference_t preference{};
  BRAID_LIBRARY_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    BRAID_LIBRARY_CHECK(
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.c));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library, choice.product, choice.first, choice.second,
                                     choice.result, choice.result, preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    call_failed(__FILE__, __LINE__, "cublasLtMatmulAlgoGetHeuristic",
                cublasLtGetStatusString(status));
  }
  choice.algorithm = found.algo;
  return choice;
}

const Choice& cached_choice(cublasLtHandle_t library, const DeviceProduct& p, int device,
                            size_t workspace_bytes) {
  static std::mutex mutex;
  static std::map<Key, Choice> choices;
  const Key key = {device,
                   static_cast<int64_t>(p.type),
                   p.rows,
                   p.cols,
                   p.depth,
                   p.a_stride,
                   p.b_stride,
                   p.c_stride,
                   2 * int64_t{p.a_transposed} + int64_t{p.b_transposed},
                   alignment_of(p.a),
                   alignment_of(p.b),
                   alignment_of(p.c),
                   static_cast<int64_t>(workspace_bytes)};
  const std::lock_guard lock(mutex);
  const auto found = choices.find(key);
  if (found != choices.end()) return found->second;
  return choices.emplace(key, choose(library, p, workspace_bytes)).first->second;
}

}  // namespace

void multiply(Stream& stream, const DeviceProduct& p) {
  if (p.rows <= 0 || p.cols <= 0 || p.depth <= 0) return;
  StreamState& state = stream.cuda();
  const auto library = static_cast<cublasLtHandle_t>(state.matrix_library());
  const std::span<std::byte> memory = state.library_workspace();
  const Choice& choice = cached_choice(library, p, state.device(), memory.size());
  const auto alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
  const bool f64 = p.type == ProductType::kF64;
  const void* const alpha_at = f64 ? static_cast<const void*>(&p.alpha) : &alpha;
  const void* const beta_at = f64 ? static_cast<const void*>(&p.beta) : &beta;
  BRAID_LIBRARY_CHECK(cublasLtMatmul(library, choice.product, alpha_at, p.b, choice.first, p.a,
                                     choice.second, beta_at, p.c, choice.result, p.c, choice.result,
                                     &choice.algorithm, memory.data(), memory.size(),
                                     state.handle()));
  state.finish_op("multiply");
}

}  // namespace braid::cuda

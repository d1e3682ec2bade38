#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "ops/cuda/alignment.h"
#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/library_product.h"

namespace braid::cuda {
namespace {

// Of the library workspace, for weights that must be expanded first: small enough to stay in the
// second-level cache until the product has read them.
constexpr size_t kExpandedBytes = size_t{16} << 20;

// Of the library for a shape.
constexpr int kMostCandidates = 8;

// y (column-major [rows, tokens]) = w (column-major [cols, rows], transposed) · x ([cols, tokens]).
struct Shape {
  int device;
  bool bfloat16;
  int rows, cols, tokens;
  int64_t x_stride, y_stride;
  uint32_t w_alignment, x_alignment, y_alignment;
  size_t workspace;
  int rank;  // of the library's candidates

  bool operator<(const Shape& other) const { return key() < other.key(); }

 private:
  std::tuple<int, bool, int, int, int, int64_t, int64_t, uint32_t, uint32_t, uint32_t, size_t, int>
  key() const {
    return {device,   bfloat16,    rows,        cols,        tokens,    x_stride,
            y_stride, w_alignment, x_alignment, y_alignment, workspace, rank};
  }
};

// What the library chose for a shape. Its handles are small and stay for good.
struct Choice {
  bool usable = false;
  int candidates = 0;  // up to the rank that was asked for
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
  cublasLtMatmulHeuristicResult_t found[kMostCandidates]{};
  int count = 0;
  if (good && cublasLtMatmulAlgoGetHeuristic(library, choice.product, choice.w, choice.x, choice.y,
                                             choice.y, preference,
                                             std::min(shape.rank + 1, kMostCandidates), found,
                                             &count) == CUBLAS_STATUS_SUCCESS) {
    for (int i = 0; i < count; ++i) {
      if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
      ++choice.candidates;
      choice.algorithm = found[i].algo;  // the last one is that of the rank, if there are so many
    }
    choice.usable = choice.candidates > 0;
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

// How the library gets at a product's weights and inputs.
struct Plan {
  bool bfloat16 = false;
  bool direct = false;  // the weights are in its format
  int piece = 0;        // rows that are expanded at a time, or all of them; 0: it cannot
  std::span<std::byte> expanded, workspace;
};

Plan plan_of(StreamState& state, const Products& p) {
  Plan plan{.bfloat16 = p.packed != nullptr && p.format != FormatId::kF32};
  // Exact products of rounded inputs are for the caller's own kernel.
  if (!plan.bfloat16 && p.packed != nullptr) return plan;
  plan.direct = p.format == (plan.bfloat16 ? FormatId::kBF16 : FormatId::kF32);
  if (!plan.direct && p.cols % kPackedColumns % 32 != 0) return plan;
  const std::span<std::byte> memory = state.library_workspace();
  plan.expanded = memory.first(kExpandedBytes);
  plan.workspace = memory.subspan(kExpandedBytes);
  const int64_t row_bytes = int64_t{p.cols} * (plan.bfloat16 ? 2 : 4);
  plan.piece = plan.direct
                   ? p.rows
                   : static_cast<int>(std::min<int64_t>(
                         p.rows, static_cast<int64_t>(kExpandedBytes) / row_bytes / 128 * 128));
  return plan;
}

// The choice for rows [first, first + count).
const Choice& choice_of(StreamState& state, const Products& p, const Plan& plan, int first,
                        int count, int rank) {
  const void* const x = plan.bfloat16 ? static_cast<const void*>(p.packed) : p.x;
  const void* const w = plan.direct ? p.weights + first * p.row_bytes
                                    : reinterpret_cast<const uint8_t*>(plan.expanded.data());
  return cached_choice(static_cast<cublasLtHandle_t>(state.matrix_library()),
                       {state.device(), plan.bfloat16, count, p.cols, p.tokens,
                        plan.bfloat16 ? p.packed_stride : p.x_stride, p.y_stride, alignment_of(w),
                        alignment_of(x), alignment_of(p.y + first), plan.workspace.size(), rank});
}

}  // namespace

int library_candidates(Stream& stream, const Products& p, int most) {
  const Plan plan = plan_of(stream.cuda(), p);
  if (plan.piece == 0) return 0;
  return choice_of(stream.cuda(), p, plan, 0, plan.piece, most - 1).candidates;
}

bool library_products(Stream& stream, const Products& products) {
  return library_products_by(stream, products, 0);
}

bool library_products_by(Stream& stream, const Products& p, int rank) {
  StreamState& state = stream.cuda();
  const auto library = static_cast<cublasLtHandle_t>(state.matrix_library());
  const Plan plan = plan_of(state, p);
  if (plan.piece == 0) return false;
  const void* const x = plan.bfloat16 ? static_cast<const void*>(p.packed) : p.x;
  for (int first = 0; first < p.rows; first += plan.piece) {
    const int count = std::min(plan.piece, p.rows - first);
    const Choice& choice = choice_of(state, p, plan, first, count, rank);
    if (!choice.usable) {
      BRAID_CHECK(first == 0, "the matrix library refuses a part of a product that it took");
      return false;
    }
    const void* w = p.weights + first * p.row_bytes;
    if (!plan.direct) {
      w = plan.expanded.data();
      if (plan.bfloat16) {
        expand_rows(stream, p, first, count, reinterpret_cast<uint16_t*>(plan.expanded.data()));
      } else {
        expand_rows(stream, p, first, count, reinterpret_cast<float*>(plan.expanded.data()));
      }
    }
    const float one = 1, zero = 0;
    float* const y = p.y + first;
    const cublasStatus_t status = cublasLtMatmul(
        library, choice.product, &one, w, choice.w, x, choice.x, &zero, y, choice.y, y, choice.y,
        &choice.algorithm, plan.workspace.data(), plan.workspace.size(), state.handle());
    if (status != CUBLAS_STATUS_SUCCESS) {
      call_failed(__FILE__, __LINE__, "cublasLtMatmul", cublasLtGetStatusString(status));
    }
  }
  return true;
}

}  // namespace braid::cuda

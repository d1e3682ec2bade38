#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/launch.cuh"
#include "quantize/cuda/device_gptq.h"
#include "quantize/cuda/matrix_library.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;
constexpr int kTileRows = 8;  // threads of a tile's block along rows
constexpr int kLeaf = 64;     // columns of a triangle that one block inverts
// Products with a triangle are cut into so many pieces, which pass over most of its zeros, unless
// pieces become smaller than that.
constexpr int64_t kPieces = 4;
constexpr int64_t kLeastPiece = 256;

unsigned blocks_of(int64_t count) {
  return static_cast<unsigned>(std::min<int64_t>(ceil_divide<int64_t>(count, kThreads), 1 << 20));
}

__device__ __forceinline__ float as_float(float x) { return x; }
__device__ __forceinline__ float as_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__global__ void expand_kernel(const T* from, int64_t count, float* to) {
  wait_for_inputs();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    to[i] = as_float(from[i]);
  }
}

__global__ void split_kernel(const float* from, int64_t cols, int64_t stride, uint16_t* high,
                             uint16_t* low, int64_t to_stride) {
  wait_for_inputs();
  const float* const row = from + int64_t{blockIdx.x} * stride;
  const int64_t to = int64_t{blockIdx.x} * to_stride;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const __nv_bfloat16 h = __float2bfloat16_rn(row[i]);
    const __nv_bfloat16 l = __float2bfloat16_rn(row[i] - __bfloat162float(h));
    high[to + i] = __bfloat16_as_ushort(h);
    low[to + i] = __bfloat16_as_ushort(l);
  }
}

// Grid: tiles of the lower triangle, of which each is the mirror of one of the upper.
__global__ void mirror_kernel(float* sums, int64_t n, float factor) {
  if (blockIdx.x > blockIdx.y) return wait_for_inputs();
  __shared__ float tile[kTile][kTile + 1];
  wait_for_inputs();
  const int64_t row = int64_t{blockIdx.x} * kTile, col = int64_t{blockIdx.y} * kTile;
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const int64_t r = row + i, c = col + threadIdx.x;
    if (r >= n || c >= n) continue;
    const float value = sums[r * n + c] * factor;
    tile[i][threadIdx.x] = value;
    if (c >= r) sums[r * n + c] = value;
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    const int64_t r = col + i, c = row + threadIdx.x;
    if (r < n && c < r) sums[r * n + c] = tile[threadIdx.x][i];
  }
}

__global__ void diagonal_kernel(const float* matrix, int64_t n, float* out) {
  wait_for_inputs();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) out[i] = matrix[i * n + i];
}

__global__ void fill_kernel(const float* h, const int32_t* order, int64_t n, double added,
                            double* l, int64_t stride) {
  wait_for_inputs();
  const int64_t i = blockIdx.x;
  const float* const row = h + int64_t{order[n - 1 - i]} * n;
  for (int64_t j = threadIdx.x; j < n; j += kThreads) {
    double value = 0;
    if (j <= i) value = row[order[n - 1 - j]];
    if (j == i) value = (value == 0 ? 1 : value) + added;
    l[i * stride + j] = value;
  }
}

// A and the unit matrix side by side: rows are freed of what is left of the diagonal, and what then
// stands on the right is L⁻¹ but for the roots of the diagonal.
__global__ void __launch_bounds__(kThreads)
    leaf_kernel(double* a, int n, int64_t stride, int32_t* failures) {
  extern __shared__ double shared[];
  double* const lower = shared;                          // [kLeaf][kLeaf + 1]
  double* const inverse = shared + kLeaf * (kLeaf + 1);  // the same
  constexpr int kRow = kLeaf + 1;
  wait_for_inputs();
  for (int i = threadIdx.x; i < n * n; i += kThreads) {
    const int r = i / n, c = i % n;
    lower[r * kRow + c] = c <= r ? a[r * stride + c] : 0;
    inverse[r * kRow + c] = r == c ? 1 : 0;
  }
  // Threads of a column of 4 rows apart each.
  const int column = threadIdx.x % kLeaf, first = threadIdx.x / kLeaf;
  for (int j = 0; j < n; ++j) {
    __syncthreads();
    const double pivot = lower[j * kRow + j];
    if (!(pivot > 0) || isinf(pivot)) {
      if (threadIdx.x == 0) atomicAdd(failures, 1);
      return;
    }
    const double reciprocal = 1 / pivot;
    if (column >= n) continue;
    const bool below = column > j;
    // Of the symmetric rest only the lower triangle is kept.
    const double mine = below ? lower[column * kRow + j] : inverse[j * kRow + column];
    for (int i = j + 1 + first; i < n; i += kThreads / kLeaf) {
      const double share = lower[i * kRow + j] * reciprocal;
      if (below) {
        if (i >= column) lower[i * kRow + column] -= share * mine;
      } else {
        inverse[i * kRow + column] -= share * mine;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n * n; i += kThreads) {
    const int r = i / n, c = i % n;
    a[r * stride + c] = c <= r ? inverse[r * kRow + c] / sqrt(lower[r * kRow + r]) : 0;
  }
}

__global__ void upper_kernel(const double* l, int64_t n, int64_t stride, float* u) {
  wait_for_inputs();
  const int64_t i = blockIdx.x;
  const double* const row = l + (n - 1 - i) * stride;
  for (int64_t j = threadIdx.x; j < n; j += kThreads) {
    u[i * n + j] = j >= i ? static_cast<float>(row[n - 1 - j]) : 0;
  }
}

class FactorInverse {
 public:
  FactorInverse(Stream& stream, int64_t stride, double* scratch, int32_t* failures)
      : stream_(stream), stride_(stride), scratch_(scratch), failures_(failures) {}

  // [[A, ·], [B, C]] = L·Lᵀ: with M = L_A⁻¹ and S = B·Mᵀ, C − S·Sᵀ = L_C·L_Cᵀ, and the rest of L⁻¹
  // is −L_C⁻¹·S·M.
  void run(double* a, int64_t n) {
    if (n <= kLeaf) return leaf(a, n);
    const int64_t upper = split(n), rest = n - upper;
    double* const b = a + upper * stride_;
    double* const c = b + upper;
    run(a, upper);
    for_pieces(upper, [&](int64_t begin, int64_t count) {
      product({.rows = rest,
               .cols = count,
               .depth = begin + count,
               .a = b,
               .a_stride = stride_,
               .b = a + begin * stride_,
               .b_stride = stride_,
               .b_transposed = true,
               .c = scratch_ + begin,
               .c_stride = upper});
    });
    for_pieces(rest, [&](int64_t begin, int64_t count) {
      product({.rows = count,
               .cols = begin + count,
               .depth = upper,
               .a = scratch_ + begin * upper,
               .a_stride = upper,
               .b = scratch_,
               .b_stride = upper,
               .b_transposed = true,
               .c = c + begin * stride_,
               .c_stride = stride_,
               .alpha = -1,
               .beta = 1});
    });
    BRAID_CUDA_CHECK(cudaMemcpy2DAsync(
        b, static_cast<size_t>(stride_) * sizeof(double), scratch_,
        static_cast<size_t>(upper) * sizeof(double), static_cast<size_t>(upper) * sizeof(double),
        static_cast<size_t>(rest), cudaMemcpyDeviceToDevice, stream_.cuda().handle()));
    run(c, rest);
    for_pieces(upper, [&](int64_t begin, int64_t count) {
      product({.rows = rest,
               .cols = count,
               .depth = upper - begin,
               .a = b + begin,
               .a_stride = stride_,
               .b = a + begin * stride_ + begin,
               .b_stride = stride_,
               .c = scratch_ + begin,
               .c_stride = upper});
    });
    for_pieces(rest, [&](int64_t begin, int64_t count) {
      product({.rows = count,
               .cols = upper,
               .depth = begin + count,
               .a = c + begin * stride_,
               .a_stride = stride_,
               .b = scratch_,
               .b_stride = upper,
               .c = b + begin * stride_,
               .c_stride = stride_,
               .alpha = -1});
    });
    BRAID_CUDA_CHECK(cudaMemset2DAsync(a + upper, static_cast<size_t>(stride_) * sizeof(double), 0,
                                       static_cast<size_t>(rest) * sizeof(double),
                                       static_cast<size_t>(upper), stream_.cuda().handle()));
  }

  static int64_t split(int64_t n) { return (n / 2 + kLeaf - 1) / kLeaf * kLeaf; }

 private:
  void leaf(double* a, int64_t n) {
    constexpr size_t kShared = 2 * kLeaf * (kLeaf + 1) * sizeof(double);
    BRAID_CUDA_CHECK(cudaFuncSetAttribute(leaf_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kShared)));
    launch(stream_, leaf_kernel, 1, kThreads, kShared, a, static_cast<int>(n), stride_, failures_);
  }

  void product(DeviceProduct p) {
    p.type = ProductType::kF64;
    multiply(stream_, p);
  }

  template <typename Piece>
  static void for_pieces(int64_t n, const Piece& piece) {
    const int64_t size =
        std::max(kLeastPiece, ceil_divide(ceil_divide(n, kPieces), int64_t{kLeaf}) * kLeaf);
    for (int64_t begin = 0; begin < n; begin += size) piece(begin, std::min(size, n - begin));
  }

  Stream& stream_;
  int64_t stride_;
  double* scratch_;
  int32_t* failures_;
};

}  // namespace

void expand(Stream& stream, FormatId type, const void* from, int64_t count, float* to) {
  const unsigned blocks = blocks_of(count);
  switch (type) {
    case FormatId::kBF16:
      launch(stream, expand_kernel<__nv_bfloat16>, blocks, kThreads, 0,
             static_cast<const __nv_bfloat16*>(from), count, to);
      break;
    case FormatId::kF16:
      launch(stream, expand_kernel<__half>, blocks, kThreads, 0, static_cast<const __half*>(from),
             count, to);
      break;
    default:
      BRAID_CHECK(type == FormatId::kF32, "format {}", static_cast<int>(type));
      launch(stream, expand_kernel<float>, blocks, kThreads, 0, static_cast<const float*>(from),
             count, to);
  }
  stream.cuda().finish_op("expand");
}

void split(Stream& stream, const float* from, int64_t rows, int64_t cols, int64_t stride,
           const SplitRows& to) {
  launch(stream, split_kernel, static_cast<unsigned>(rows), kThreads, 0, from, cols, stride,
         to.high, to.low, to.stride);
  stream.cuda().finish_op("split");
}

void finish_hessian(Stream& stream, float* sums, int64_t cols, float factor) {
  const auto tiles = static_cast<unsigned>(ceil_divide<int64_t>(cols, kTile));
  launch(stream, mirror_kernel, dim3(tiles, tiles), dim3(kTile, kTileRows), 0, sums, cols, factor);
  stream.cuda().finish_op("finish_hessian");
}

void take_diagonal(Stream& stream, const float* matrix, int64_t n, float* out) {
  launch(stream, diagonal_kernel, blocks_of(n), kThreads, 0, matrix, n, out);
  stream.cuda().finish_op("take_diagonal");
}

void fill_reversed(Stream& stream, const float* h, const int32_t* order, int64_t n, double added,
                   double* l, int64_t stride) {
  launch(stream, fill_kernel, static_cast<unsigned>(n), kThreads, 0, h, order, n, added, l, stride);
  stream.cuda().finish_op("fill_reversed");
}

int64_t inverse_scratch(int64_t n) {
  if (n <= kLeaf) return 1;
  const int64_t upper = FactorInverse::split(n);
  return std::max(upper, n - upper) * upper;
}

void invert_factor(Stream& stream, double* a, int64_t n, int64_t stride, double* scratch,
                   int32_t* failures) {
  FactorInverse(stream, stride, scratch, failures).run(a, n);
  stream.cuda().finish_op("invert_factor");
}

void take_upper(Stream& stream, const double* l, int64_t n, int64_t stride, float* u) {
  launch(stream, upper_kernel, static_cast<unsigned>(n), kThreads, 0, l, n, stride, u);
  stream.cuda().finish_op("take_upper");
}

}  // namespace braid::cuda

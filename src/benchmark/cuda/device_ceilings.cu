#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "benchmark/cuda/device_ceilings.h"
#include "tensor/buffer.h"
#include "tensor/cuda/cuda_check.h"

namespace braid::cuda {
namespace {

constexpr size_t kReadBytes = size_t{4} << 30;
constexpr int kReadThreads = 512;
constexpr int kInFlight = 4;
constexpr int kRuns = 8;
constexpr size_t kLibraryBytes = size_t{64} << 20;

__global__ void read_kernel(const uint4* data, size_t count, uint32_t* sink) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += kInFlight * step) {
    uint4 v[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      v[j] = i + j * step < count ? __ldcs(data + i + j * step) : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;  // never for this data; keeps the loads
}

// Numbers that look random: constant operands draw less power and run faster than real ones.
__global__ void fill_kernel(uint32_t* data, size_t count, uint32_t keep, uint32_t set) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 0x9e3779b9u + 0x85ebca6bu;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    data[i] = (x & keep) | set;
  }
}

class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    BRAID_CUDA_CHECK(cudaEventCreate(&begin_));
    BRAID_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  double best_seconds(const std::function<void()>& body) {
    body();
    float best = std::numeric_limits<float>::max();
    for (int run = 0; run < kRuns; ++run) {
      BRAID_CUDA_CHECK(cudaEventRecord(begin_, stream_));
      body();
      BRAID_CUDA_CHECK(cudaEventRecord(end_, stream_));
      BRAID_CUDA_CHECK(cudaEventSynchronize(end_));
      float milliseconds = 0;
      BRAID_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
      best = std::min(best, milliseconds);
    }
    return best / 1e3;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
};

void check_library(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    call_failed(__FILE__, __LINE__, call, cublasLtGetStatusString(status));
  }
}

// Seconds of an n³ product of transposed and plain operands.
double product_seconds(cublasLtHandle_t library, Timer& timer, int64_t n, cudaDataType_t operands,
                       cudaDataType_t result, cublasComputeType_t compute, cudaDataType_t scale,
                       uint32_t keep, uint32_t set) {
  const size_t element = operands == CUDA_R_32F ? 4 : operands == CUDA_R_16BF ? 2 : 1;
  const Device device{DeviceKind::kCuda, 0};
  const Buffer a(n * n * element, device), b(n * n * element, device), c(n * n * 4, device);
  const Buffer workspace(kLibraryBytes, device);
  for (const Buffer* operand : {&a, &b}) {
    fill_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(operand->data()),
                               operand->size_bytes() / 4, keep, set);
  }
  BRAID_CUDA_CHECK(cudaDeviceSynchronize());
  cublasLtMatmulDesc_t product;
  check_library(cublasLtMatmulDescCreate(&product, compute, scale), "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check_library(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                               sizeof(transposed)),
                "cublasLtMatmulDescSetAttribute");
  cublasLtMatrixLayout_t in, out;
  check_library(cublasLtMatrixLayoutCreate(&in, operands, n, n, n), "cublasLtMatrixLayoutCreate");
  check_library(cublasLtMatrixLayoutCreate(&out, result, n, n, n), "cublasLtMatrixLayoutCreate");
  cublasLtMatmulPreference_t preference;
  check_library(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  check_library(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &kLibraryBytes, sizeof(kLibraryBytes)),
      "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check_library(cublasLtMatmulAlgoGetHeuristic(library, product, in, in, out, out, preference, 1,
                                               &found, &count),
                "cublasLtMatmulAlgoGetHeuristic");
  const float one = 1, zero = 0;
  const int32_t int_one = 1, int_zero = 0;
  const bool integers = scale == CUDA_R_32I;
  const void* alpha = integers ? static_cast<const void*>(&int_one) : &one;
  const void* beta = integers ? static_cast<const void*>(&int_zero) : &zero;
  const double seconds = timer.best_seconds([&] {
    check_library(
        cublasLtMatmul(library, product, alpha, a.data(), in, b.data(), in, beta, c.data(), out,
                       c.data(), out, &found.algo, workspace.data(), kLibraryBytes, nullptr),
        "cublasLtMatmul");
  });
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(in);
  cublasLtMatrixLayoutDestroy(out);
  cublasLtMatmulDescDestroy(product);
  return seconds;
}

}  // namespace

Ceilings measure_device_ceilings(int device) {
  BRAID_CUDA_CHECK(cudaSetDevice(device));
  Ceilings ceilings;
  Timer timer(nullptr);
  int num_multiprocessors = 0;
  BRAID_CUDA_CHECK(
      cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device));
  {
    size_t free_bytes = 0, total_bytes = 0;
    BRAID_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    const size_t size = std::min(kReadBytes, free_bytes / 4) / 4096 * 4096;
    const Buffer data(size, {DeviceKind::kCuda, device}), sink(64, {DeviceKind::kCuda, device});
    const double seconds = timer.best_seconds([&] {
      read_kernel<<<2 * num_multiprocessors, kReadThreads>>>(
          reinterpret_cast<const uint4*>(data.data()), size / sizeof(uint4),
          reinterpret_cast<uint32_t*>(sink.data()));
    });
    ceilings.read_bytes_per_second = static_cast<double>(size) / seconds;
  }
  cublasLtHandle_t library;
  check_library(cublasLtCreate(&library), "cublasLtCreate");
  const auto rate = [&](int64_t n, double seconds) {
    return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
  };
  auto& rates = ceilings.operations_per_second;
  // Mantissas and signs at random, exponents near that of 1.
  rates[static_cast<int>(Arithmetic::kBF16)] =
      rate(8192, product_seconds(library, timer, 8192, CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F, 0x80ff80ffu, 0x3f003f00u));
  rates[static_cast<int>(Arithmetic::kInt8)] =
      rate(8192, product_seconds(library, timer, 8192, CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I,
                                 CUDA_R_32I, 0xffffffffu, 0));
  rates[static_cast<int>(Arithmetic::kF32)] =
      rate(4096, product_seconds(library, timer, 4096, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F, 0x80ffffffu, 0x3f000000u));
  cublasLtDestroy(library);
  return ceilings;
}

}  // namespace braid::cuda

// What of the time of a product of 4-bit tiles each part of it takes: the kernel of the weight
// stream with parts of the multiplication left out (results are then wrong).
//
//   cuda_stream_variants

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "ops/linear/cuda/stream_tiles.cuh"
#include "tensor/buffer.h"

namespace {

using namespace braid;
using namespace braid::cuda;

using Base = TileSource<FormatId::kW4G128>;
constexpr size_t kPoolBytes = size_t{2} << 30;

enum Variant { kNothing, kLoads, kRaw, kSubnormal, kNoProducts, kBytePairs, kFull };
constexpr const char* kNames[] = {"nothing",     "loads",      "raw words", "subnormal",
                                  "no products", "byte pairs", "full"};

template <int kVariant>
struct Source : Base {
  template <int kTokenTiles>
  class Lane : public Base::Lane<kTokenTiles> {
   public:
    using Base::Lane<kTokenTiles>::Lane;
    __device__ __forceinline__ void multiply(int step, uint32_t weights, uint32_t inputs,
                                             float (&sums)[2][kTokenTiles][4]) const {
      if constexpr (kVariant == kFull) {
        return Base::Lane<kTokenTiles>::multiply(step, weights, inputs, sums);
      }
      if constexpr (kVariant == kNothing) return;
      if (step * this->column_warps_ + this->column_warp_ >= this->tile_units_) return;
      UnitCodes<Layout> unit;
      unit.load(this->shared_pointer(weights + this->weights_), this->lane_);
      if constexpr (kVariant == kLoads) {
        for (int i = 0; i < 2; ++i) {
          for (int j = 0; j < 2; ++j) {
            const uint4 v = unit.codes[i][j];
            sums[i][0][j] += __uint_as_float((v.x ^ v.y ^ v.z ^ v.w) & 0x3fffffff);
          }
        }
        return;
      }
      const unsigned char* x = this->shared_pointer(inputs + this->inputs_[0]);
      float products[2][4] = {};
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        const uint4 b = *reinterpret_cast<const uint4*>(x + chunk * this->chunk_bytes_);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t w[2][4];
          const uint4& v = unit.codes[chunk / 2][half];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t word = chunk % 2 == 0 ? (i == 0 ? v.x : v.y) : (i == 0 ? v.z : v.w);
            if constexpr (kVariant == kRaw) {
              w[i][0] = w[i][1] = w[i][2] = w[i][3] = word;
            } else if constexpr (kVariant == kSubnormal) {
              const uint32_t upper = word >> 8;
              w[i][0] = word & 0x000f000f;
              w[i][1] = word & 0x00f000f0;
              w[i][2] = upper & 0x000f000f;
              w[i][3] = upper & 0x00f000f0;
            } else if constexpr (kVariant == kBytePairs) {
              constexpr uint32_t kUp127 = 0x7f007f00, kUp123 = 0x7d007d00, kDown123 = 0xfd00fd00;
              const uint32_t zero = 0xbe00be00;
              const uint32_t low = word & 0x00ff00ff, high = __byte_perm(word, 0, 0x4341);
              const uint32_t low0 = word & 0x000f000f, high0 = high & 0x000f000f;
              w[i][0] = multiply_add_pair(low0, kUp127, zero);
              w[i][1] = multiply_add_pair(low, kUp123, multiply_add_pair(low0, kDown123, zero));
              w[i][2] = multiply_add_pair(high0, kUp127, zero);
              w[i][3] = multiply_add_pair(high, kUp123, multiply_add_pair(high0, kDown123, zero));
            } else {
              spread_nibbles(word, 0xbe00be00, w[i]);
            }
          }
          if constexpr (kVariant == kNoProducts) {
            for (int i = 0; i < 4; ++i) {
              products[half][i] += __uint_as_float((w[0][i] ^ w[1][i] ^ b.x) & 0x3fffffff);
            }
          } else {
            multiply_add(products[half], w[0][0], w[1][0], w[0][1], w[1][1], b.x, b.y);
            multiply_add(products[half], w[0][2], w[1][2], w[0][3], w[1][3], b.z, b.w);
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = unit.scale(0, 2 * half), high = unit.scale(0, 2 * half + 1);
        for (int i = 0; i < 4; ++i) {
          sums[half][0][i] = fmaf(i < 2 ? low : high, products[half][i], sums[half][0][i]);
        }
      }
    }
  };
};

struct Machine {
  ThreadPool pool{{.num_threads = 1}};
  Stream stream{pool, Device{DeviceKind::kCuda, 0}};
  Buffer weights{kPoolBytes, stream.device()};
  Buffer x{size_t{4} << 20, stream.device()};
  Buffer y{size_t{16} << 20, stream.device()};
};

double time_chain(Machine& m, int links, const std::function<void(int)>& link) {
  cudaStream_t stream = m.stream.cuda().handle();
  link(0);
  BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  BRAID_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < links; ++i) link(i);
  BRAID_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  BRAID_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  BRAID_CUDA_CHECK(cudaEventCreate(&begin));
  BRAID_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 6; ++i) {
    BRAID_CUDA_CHECK(cudaEventRecord(begin, stream));
    BRAID_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    BRAID_CUDA_CHECK(cudaEventRecord(end, stream));
    BRAID_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 0) times.push_back(ms);
  }
  BRAID_CUDA_CHECK(cudaGraphExecDestroy(executable));
  BRAID_CUDA_CHECK(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return 1e3 * times[times.size() / 2] / links;
}

template <int kVariant>
void measure(Machine& m, int rows, int cols, int row_warps) {
  Products p{};
  p.format = FormatId::kW4G128;
  p.tiles = true;
  p.row_bytes = cols / 128 * 66;
  p.matrix_bytes = rows * p.row_bytes;
  p.rows = rows;
  p.cols = cols;
  p.packed = reinterpret_cast<const uint16_t*>(m.x.data());
  p.packed_stride = cols;
  p.y = reinterpret_cast<float*>(m.y.data());
  p.y_stride = rows;
  p.tokens = 1;
  const int links = std::clamp<int>(static_cast<int>(kPoolBytes / p.matrix_bytes), 2, 64);
  const double us = time_chain(m, links, [&](int i) {
    Products part = p;
    part.weights = reinterpret_cast<const uint8_t*>(m.weights.data()) + i * p.matrix_bytes;
    StreamPlan plan = stream_plan(part);
    plan.num_phases = 1;
    plan.token_tiles = 1;
    plan.tokens = 1;
    plan.phases[0] = stream_phase(plan, part, row_warps, false);
    plan.phases[0].y = p.y;
    plan.phases[0].out_stride = p.y_stride;
    launch_stream<Source<kVariant>, 1>(m.stream, plan);
  });
  std::printf("  %s %.1f", kNames[kVariant], us);
}

}  // namespace

int main() {
  Machine m;
  BRAID_CUDA_CHECK(cudaMemset(m.weights.data(), 0x35, kPoolBytes));
  BRAID_CUDA_CHECK(cudaMemset(m.x.data(), 0x3d, m.x.size_bytes()));
  constexpr int kShapes[][3] = {{30720, 3840, 4}, {30720, 3840, 2}, {30720, 3840, 1},
                                {8192, 3840, 2},  {3840, 15360, 1}, {3840, 4096, 1}};
  for (const auto& [rows, cols, row_warps] : kShapes) {
    std::printf("%d x %d, %d row warps:", rows, cols, row_warps);
    measure<kNothing>(m, rows, cols, row_warps);
    measure<kLoads>(m, rows, cols, row_warps);
    measure<kRaw>(m, rows, cols, row_warps);
    measure<kSubnormal>(m, rows, cols, row_warps);
    measure<kNoProducts>(m, rows, cols, row_warps);
    measure<kBytePairs>(m, rows, cols, row_warps);
    measure<kFull>(m, rows, cols, row_warps);
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}

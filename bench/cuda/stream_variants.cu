// What of the time of a product of 4-bit tiles each part of it takes: the kernel of the weight
// stream with parts of the multiplication left out (results are then wrong).
//
//   cuda_stream_variants

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

#include "chain_timer.h"
#include "ops/linear/cuda/stream_tiles.cuh"
#include "tensor/buffer.h"

namespace {

using namespace braid;
using namespace braid::cuda;

using Base = TileSource<FormatId::kW4G128>;
constexpr size_t kPoolBytes = size_t{2} << 30;

// masks: codes become subnormal numbers, without the multiply-adds that make them what they mean;
// no inputs: all as it is but for their copies.
enum Variant { kNothing, kLoads, kRaw, kMasks, kNoInputs, kFull };
constexpr const char* kNames[] = {"nothing", "loads", "raw words", "masks", "no inputs", "full"};

template <int kVariant, int kTokenTiles>
class VariantLane : public Base::Lane<kTokenTiles> {
 public:
  using Parent = Base::Lane<kTokenTiles>;
  using Layout = Base::Layout;
  using Parent::Parent;
  __device__ __forceinline__ void multiply(int step, uint32_t weights, uint32_t inputs,
                                           float (&sums)[2][kTokenTiles][4]) {
    if constexpr (kVariant >= kNoInputs) {
      return Parent::multiply(step, weights, inputs, sums);
    }
    if constexpr (kVariant == kNothing) return;
    const bool any = this->left_ > 0;
    this->left_ -= Base::kSets * this->step_units_;
    if (!any) return;
    UnitCodes<Layout> unit;
    const unsigned char* codes = this->shared_pointer(weights + this->codes_);
    unit.load(codes, codes + this->codes_to_scales_, this->lane_);
    if constexpr (kVariant == kLoads) {
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) {
          const uint4 v = unit.codes[i][j];
          sums[i][0][j] += __uint_as_float((v.x ^ v.y ^ v.z ^ v.w) & 0x3fffffff);
        }
      }
      return;
    }
    float products[2][kTokenTiles][4];
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const float2 first = kVariant == kRaw ? float2{0, 0}
                                            : *reinterpret_cast<const float2*>(this->shared_pointer(
                                                  inputs + t * 64 + this->lane_ % 4 * 8));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        products[half][t][0] = products[half][t][2] = first.x;
        products[half][t][1] = products[half][t][3] = first.y;
      }
    }
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      uint4 b[kTokenTiles];
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        b[t] = *reinterpret_cast<const uint4*>(
            this->shared_pointer(inputs + this->inputs_[chunk / 2][chunk % 2]) +
            t * this->eight_tokens_);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t w[2][4];
        const uint4& v = unit.codes[chunk / 2][half];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t word = chunk % 2 == 0 ? (i == 0 ? v.x : v.y) : (i == 0 ? v.z : v.w);
          const uint32_t upper = word >> 8;
          if constexpr (kVariant == kRaw) {
            w[i][0] = w[i][1] = w[i][2] = w[i][3] = word;
          } else {
            w[i][0] = word & 0x000f000f;
            w[i][1] = word & 0x00f000f0;
            w[i][2] = upper & 0x000f000f;
            w[i][3] = upper & 0x00f000f0;
          }
        }
#pragma unroll
        for (int t = 0; t < kTokenTiles; ++t) {
          multiply_add(products[half][t], w[0][0], w[1][0], w[0][1], w[1][1], b[t].x, b[t].y);
          multiply_add(products[half][t], w[0][2], w[1][2], w[0][3], w[1][3], b[t].z, b[t].w);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float low = unit.scale(0, 2 * half), high = unit.scale(0, 2 * half + 1);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        for (int i = 0; i < 4; ++i) {
          sums[half][t][i] = fmaf(i < 2 ? low : high, products[half][t][i], sums[half][t][i]);
        }
      }
    }
  }
};

struct NoInputs {
  __device__ NoInputs(const StreamPhase&, const TokenTile&, const uint16_t*) {}
  __device__ void bring(int, uint32_t, uint32_t barrier) const {
    if (threadIdx.x % kWarp == 0) arrive(barrier);
  }
};

template <int kVariant>
struct Source : Base {
  template <int kTokenTiles>
  using Lane = VariantLane<kVariant, kTokenTiles>;
  template <int kTokens>
  using Inputs =
      std::conditional_t<kVariant == kNoInputs, NoInputs, typename Base::template Inputs<kTokens>>;
};

struct Machine {
  ThreadPool pool{{.num_threads = 1}};
  Stream stream{pool, Device{DeviceKind::kCuda, 0}};
  Buffer weights{kPoolBytes, stream.device()};
  Buffer x{size_t{4} << 20, stream.device()};
  Buffer y{size_t{16} << 20, stream.device()};
};

template <int kVariant, int kTokenTiles>
void measure(Machine& m, int tokens, int rows, int cols, int row_warps) {
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
  p.tokens = tokens;
  const int links = std::clamp<int>(static_cast<int>(kPoolBytes / p.matrix_bytes), 2, 64);
  const double seconds =
      link_seconds(m.stream, links, {.unmeasured = 1, .measured = 5}, [&](int i) {
        Products part = p;
        part.weights = reinterpret_cast<const uint8_t*>(m.weights.data()) + i * p.matrix_bytes;
        StreamPlan plan = stream_plan(part);
        plan.num_phases = 1;
        plan.token_tiles = kTokenTiles;
        plan.tokens = tokens;
        plan.phases[0] = stream_phase(plan, part, row_warps, false);
        plan.phases[0].y = p.y;
        plan.phases[0].out_stride = p.y_stride;
        launch_stream<Source<kVariant>, kTokenTiles>(m.stream, plan);
      });
  std::printf("  %s %.1f", kNames[kVariant], 1e6 * seconds);
}

template <int kTokenTiles>
void measure_all(Machine& m, int tokens) {
  constexpr int kShapes[][3] = {
      {30720, 3840, 4}, {30720, 3840, 2}, {8192, 3840, 2}, {3840, 15360, 1}, {3840, 4096, 1}};
  for (const auto& [rows, cols, row_warps] : kShapes) {
    std::printf("%d tokens, %d x %d, %d row warps:", tokens, rows, cols, row_warps);
    measure<kNothing, kTokenTiles>(m, tokens, rows, cols, row_warps);
    measure<kLoads, kTokenTiles>(m, tokens, rows, cols, row_warps);
    measure<kRaw, kTokenTiles>(m, tokens, rows, cols, row_warps);
    measure<kMasks, kTokenTiles>(m, tokens, rows, cols, row_warps);
    measure<kNoInputs, kTokenTiles>(m, tokens, rows, cols, row_warps);
    measure<kFull, kTokenTiles>(m, tokens, rows, cols, row_warps);
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main() {
  Machine m;
  BRAID_CUDA_CHECK(cudaMemset(m.weights.data(), 0x35, kPoolBytes));
  BRAID_CUDA_CHECK(cudaMemset(m.x.data(), 0x3d, m.x.size_bytes()));
  measure_all<1>(m, 1);
  measure_all<1>(m, 8);
  measure_all<2>(m, 10);
  return 0;
}

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_vectors.cuh"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/gated_delta/cuda/recurrent_table.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = 128;
// Rows that a block takes one after another; their inputs pass through its registers.
constexpr int kBlockRows = 32;
// Inputs that are fetched together.
constexpr int kAhead = 8;

// Neighbouring channels.
template <int kLanes>
struct Channels {
  alignas(4 * kLanes) float v[kLanes];

  __device__ static Channels load(const float* from) {
    Channels c;
    if constexpr (kLanes == 4) {
      *reinterpret_cast<float4*>(c.v) = *reinterpret_cast<const float4*>(from);
    } else {
      c.v[0] = *from;
    }
    return c;
  }
  __device__ void store(float* to) const {
    if constexpr (kLanes == 4) {
      *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(v);
    } else {
      *to = v[0];
    }
  }
};

// A thread computes kLanes channels of one stretch of a sequence's rows. The first stretch's
// threads alone touch the rows kept.
template <int kWidth, int kLanes>
__global__ void __launch_bounds__(kThreads)
    conv_kernel(Rows<const float> x, const float* weight, const DeviceRecurrentRows* sequences,
                Rows<float> kept_rows, Rows<float> y, int channels) {
  using C = Channels<kLanes>;
  constexpr int kOld = kWidth - 1;
  const int channel = (blockIdx.x * kThreads + threadIdx.x) * kLanes;
  C taps[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
#pragma unroll
    for (int c = 0; c < kLanes; ++c) {
      taps[j].v[c] = channel < channels ? weight[(channel + c) * kWidth + j] : 0;
    }
  }
  wait_for_inputs();
  const DeviceRecurrentRows rows = sequences[blockIdx.z];
  const int begin = blockIdx.y * kBlockRows;
  const int end = min(begin + kBlockRows, rows.num_rows);
  if (channel >= channels || begin >= end) return;
  float* kept = kept_rows[rows.slot] + channel;
  // Row t counted from the oldest one kept; t >= kOld is the step's row t − kOld.
  const auto from_step = [&](int t) { return C::load(x[rows.first_row + t - kOld] + channel); };

  C inputs[kWidth], old[kWidth];
#pragma unroll
  for (int j = 0; j < kOld; ++j) {
    if (begin + j >= kOld) {
      inputs[j] = from_step(begin + j);
    } else {
      inputs[j] =
          rows.fresh
              ? C{}
              : C::load(kept + static_cast<int64_t>(rows.num_replayed + begin + j) * channels);
    }
    old[j] = inputs[j];
  }
  for (int first = begin; first < end; first += kAhead) {
    C next[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next[i] = first + i < end ? from_step(first + i + kOld) : C{};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= end) break;
      inputs[kOld] = next[i];
      C result;
#pragma unroll
      for (int c = 0; c < kLanes; ++c) {
        float sum = inputs[0].v[c] * taps[0].v[c];
#pragma unroll
        for (int j = 1; j < kWidth; ++j) sum = fmaf(taps[j].v[c], inputs[j].v[c], sum);
        result.v[c] = silu(sum);
      }
      result.store(y[rows.first_row + first + i] + channel);
#pragma unroll
      for (int j = 0; j < kOld; ++j) inputs[j] = inputs[j + 1];
    }
  }
  if (begin > 0) return;
  const int first_kept = rows.logged ? 0 : rows.num_rows;
  // `old` is in registers: only constants index it.
#pragma unroll
  for (int j = 0; j < kOld; ++j) {
    if (j >= first_kept) old[j].store(kept + static_cast<int64_t>(j - first_kept) * channels);
  }
  for (int t = max(first_kept, kOld); t < kOld + rows.num_rows; ++t) {
    from_step(t).store(kept + static_cast<int64_t>(t - first_kept) * channels);
  }
}

template <int kWidth>
void launch_conv(Stream& stream, const TensorView& x, const TensorView& weight,
                 const RecurrentLayer& layer, const DeviceRecurrentRows* table, int num_sequences,
                 int64_t most_rows, const TensorView& y) {
  const int channels = static_cast<int>(x.dim(1));
  const auto run = [&](auto kernel, int lanes) {
    const dim3 grid(static_cast<unsigned>(ceil_divide(channels, kThreads * lanes)),
                    static_cast<unsigned>(ceil_divide<int64_t>(most_rows, kBlockRows)),
                    static_cast<unsigned>(num_sequences));
    launch(stream, kernel, grid, kThreads, 0, rows_of<const float>(x), weight.data<float>(), table,
           rows_of<float>(layer.conv_rows), rows_of<float>(y), channels);
    stream.cuda().finish_op("causal_conv_silu");
  };
  // Few rows need all the threads that there can be.
  if (most_rows >= kAhead && rows_are_aligned(x, y, layer.conv_rows)) {
    run(conv_kernel<kWidth, 4>, 4);
  } else {
    run(conv_kernel<kWidth, 1>, 1);
  }
}

}  // namespace

void causal_conv_silu(Stream& stream, const TensorView& x, const TensorView& weight,
                      const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                      const TensorView& y) {
  int64_t most_rows = 0;
  for (const RecurrentRows& rows : sequences) most_rows = std::max(most_rows, rows.num_rows);
  const DeviceRecurrentRows* table = recurrent_table(stream.cuda(), sequences);
  const auto run = [&](auto width) {
    launch_conv<decltype(width)::value>(stream, x, weight, layer, table,
                                        static_cast<int>(sequences.size()), most_rows, y);
  };
  switch (weight.dim(1)) {
    case 1:
      return run(std::integral_constant<int, 1>{});
    case 2:
      return run(std::integral_constant<int, 2>{});
    case 3:
      return run(std::integral_constant<int, 3>{});
    case 4:
      return run(std::integral_constant<int, 4>{});
    case 5:
      return run(std::integral_constant<int, 5>{});
    case 6:
      return run(std::integral_constant<int, 6>{});
    case 7:
      return run(std::integral_constant<int, 7>{});
    case 8:
      return run(std::integral_constant<int, 8>{});
    default:
      BRAID_CHECK(false, "a convolution of width {}", weight.dim(1));
  }
}

}  // namespace braid::cuda

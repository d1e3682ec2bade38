#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/elementwise/cuda/activations.cuh"
#include "ops/gated_delta/cuda/recurrent_table.h"

namespace braid::cuda {
namespace {

constexpr int kThreads = 128;
// Rows that a block takes one after another; their inputs pass through its registers.
constexpr int kBlockRows = 32;
// Inputs that are fetched together.
constexpr int kAhead = 8;

// A thread computes one channel of one stretch of a sequence's rows. The first stretch's threads
// alone touch the rows kept.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    conv_kernel(Rows<const float> x, const float* weight, const DeviceRecurrentRows* sequences,
                Rows<float> kept_rows, Rows<float> y, int channels) {
  constexpr int kOld = kWidth - 1;
  const int channel = blockIdx.x * kThreads + threadIdx.x;
  float taps[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    taps[j] = channel < channels ? weight[channel * kWidth + j] : 0;
  }
  wait_for_inputs();
  const DeviceRecurrentRows rows = sequences[blockIdx.z];
  const int begin = blockIdx.y * kBlockRows;
  const int end = min(begin + kBlockRows, rows.num_rows);
  if (channel >= channels || begin >= end) return;
  float* kept = kept_rows[rows.slot] + channel;
  // Row t counted from the oldest one kept; t >= kOld is the step's row t − kOld.
  const auto from_step = [&](int t) { return x[rows.first_row + t - kOld][channel]; };

  float inputs[kWidth], old[kWidth];
#pragma unroll
  for (int j = 0; j < kOld; ++j) {
    if (begin + j >= kOld) {
      inputs[j] = from_step(begin + j);
    } else {
      inputs[j] =
          rows.fresh ? 0 : kept[static_cast<int64_t>(rows.num_replayed + begin + j) * channels];
    }
    old[j] = inputs[j];
  }
  for (int first = begin; first < end; first += kAhead) {
    float next[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next[i] = first + i < end ? from_step(first + i + kOld) : 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= end) break;
      inputs[kOld] = next[i];
      float sum = inputs[0] * taps[0];
#pragma unroll
      for (int j = 1; j < kWidth; ++j) sum = fmaf(taps[j], inputs[j], sum);
      y[rows.first_row + first + i][channel] = silu(sum);
#pragma unroll
      for (int j = 0; j < kOld; ++j) inputs[j] = inputs[j + 1];
    }
  }
  if (begin > 0) return;
  const int first_kept = rows.logged ? 0 : rows.num_rows;
  // `old` is in registers: only constants index it.
#pragma unroll
  for (int j = 0; j < kOld; ++j) {
    if (j >= first_kept) kept[static_cast<int64_t>(j - first_kept) * channels] = old[j];
  }
  for (int t = max(first_kept, kOld); t < kOld + rows.num_rows; ++t) {
    kept[static_cast<int64_t>(t - first_kept) * channels] = from_step(t);
  }
}

}  // namespace

void causal_conv_silu(Stream& stream, const TensorView& x, const TensorView& weight,
                      const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                      const TensorView& y) {
  const int channels = static_cast<int>(x.dim(1));
  int64_t most_rows = 0;
  for (const RecurrentRows& rows : sequences) most_rows = std::max(most_rows, rows.num_rows);
  const DeviceRecurrentRows* table = recurrent_table(stream.cuda(), sequences);
  const dim3 grid(static_cast<unsigned>(ceil_divide(channels, kThreads)),
                  static_cast<unsigned>(ceil_divide<int64_t>(most_rows, kBlockRows)),
                  static_cast<unsigned>(sequences.size()));
  const auto run = [&](auto kernel) {
    launch(stream, kernel, grid, kThreads, 0, rows_of<const float>(x), weight.data<float>(), table,
           rows_of<float>(layer.conv_rows), rows_of<float>(y), channels);
  };
  switch (weight.dim(1)) {
    case 1:
      run(conv_kernel<1>);
      break;
    case 2:
      run(conv_kernel<2>);
      break;
    case 3:
      run(conv_kernel<3>);
      break;
    case 4:
      run(conv_kernel<4>);
      break;
    case 5:
      run(conv_kernel<5>);
      break;
    case 6:
      run(conv_kernel<6>);
      break;
    case 7:
      run(conv_kernel<7>);
      break;
    case 8:
      run(conv_kernel<8>);
      break;
    default:
      BRAID_CHECK(false, "a convolution of width {}", weight.dim(1));
  }
  stream.cuda().finish_op("causal_conv_silu");
}

}  // namespace braid::cuda

#include "ops/conv/causal_conv.h"

#include <algorithm>

#include "base/check.h"
#include "ops/conv/conv_kernels.h"
#include "ops/cpu/split.h"
#include "ops/cuda/cuda_ops.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

struct Conv {
  const TensorView& x;
  const TensorView& weight;
  const TensorView& conv_rows;
  const TensorView& y;
  const ConvKernels& kernels = BRAID_KERNELS(kConvKernels);

  // Channels [first, first + n) of a sequence.
  void run(const RecurrentRows& rows, int64_t first, int64_t n) const {
    const int64_t width = weight.dim(1);
    const int64_t num_old = width - 1;
    const int64_t channels = x.dim(1);
    float taps[kMaxConvWidth * kConvChannels];
    kernels.transpose_taps(weight.row<float>(first), width, n, taps);

    float* kept = conv_rows.row<float>(rows.slot) + first;
    float old[kMaxConvWidth * kConvChannels];
    for (int64_t i = 0; i < num_old; ++i) {
      float* to = old + i * kConvChannels;
      if (rows.fresh) {
        std::fill_n(to, n, 0.0f);
      } else {
        std::copy_n(kept + (rows.num_replayed + i) * channels, n, to);
      }
    }
    // Row t counted from the oldest one kept.
    const auto input = [&](int64_t t) {
      return t < num_old ? old + t * kConvChannels
                         : x.row<float>(rows.first_row + t - num_old) + first;
    };
    for (int64_t t = 0; t < rows.num_rows; ++t) {
      const float* inputs[kMaxConvWidth];
      for (int64_t j = 0; j < width; ++j) inputs[j] = input(t + j);
      kernels.row(inputs, taps, width, n, y.row<float>(rows.first_row + t) + first);
    }
    const int64_t first_kept = rows.logged ? 0 : rows.num_rows;
    for (int64_t t = first_kept; t < num_old + rows.num_rows; ++t) {
      std::copy_n(input(t), n, kept + (t - first_kept) * channels);
    }
  }
};

}  // namespace

void causal_conv_silu(Stream& stream, const TensorView& x, const TensorView& weight,
                      const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                      const TensorView& y) {
  BRAID_CHECK(x.rank() == 2 && x.shape() == y.shape(), "x {}, y {}", to_string(x.shape()),
              to_string(y.shape()));
  BRAID_CHECK(weight.rank() == 2 && weight.dim(0) == x.dim(1) && weight.dim(1) >= 1 &&
                  weight.dim(1) <= kMaxConvWidth && weight.contiguous(),
              "weight {} for {} channels", to_string(weight.shape()), x.dim(1));
  const TensorView& kept = layer.conv_rows;
  const int64_t width = weight.dim(1);
  BRAID_CHECK(kept.rank() == 3 && kept.dim(1) >= width - 1 && kept.dim(2) == x.dim(1),
              "rows kept {}, {} channels, width {}", to_string(kept.shape()), x.dim(1), width);
  int64_t num_rows = 0;
  for (const RecurrentRows& rows : sequences) {
    BRAID_CHECK(rows.first_row >= 0 && rows.num_rows >= 0 &&
                    rows.first_row + rows.num_rows <= x.dim(0) && rows.slot >= 0 &&
                    rows.slot < kept.dim(0),
                "rows [{}, + {}) of {}, slot {} of {}", rows.first_row, rows.num_rows, x.dim(0),
                rows.slot, kept.dim(0));
    BRAID_CHECK(rows.num_replayed >= 0 && width - 1 + rows.num_replayed <= kept.dim(1) &&
                    !(rows.fresh && rows.num_replayed > 0),
                "{} tokens to replay of {} rows kept, fresh: {}", rows.num_replayed, kept.dim(1),
                rows.fresh);
    BRAID_CHECK(!rows.logged || width - 1 + rows.num_rows <= kept.dim(1),
                "{} rows to log, room for {}", rows.num_rows, kept.dim(1));
    num_rows += rows.num_rows;
  }
  if (num_rows == 0) return;

  const OpScope op(stream, "causal_conv_silu", [&] {
    const double elements = static_cast<double>(num_rows * x.dim(1));
    // The rows kept, read and written.
    const double kept_rows = 2.0 * static_cast<double>(sequences.size()) * (width - 1);
    return OpWork{.weight_bytes = 4.0 * static_cast<double>(weight.num_elements()),
                  .state_bytes = 4 * kept_rows * static_cast<double>(x.dim(1)),
                  .activation_bytes = 8 * elements,
                  .operations = elements * static_cast<double>(2 * width + 6)};
  });
  if (!stream.is_cpu()) return cuda::causal_conv_silu(stream, x, weight, layer, sequences, y);
  const int64_t channels = x.dim(1);
  const int64_t blocks = (channels + kConvChannels - 1) / kConvChannels;
  const int64_t items = static_cast<int64_t>(sequences.size()) * blocks;
  const int64_t item_elements = std::max<int64_t>(1, num_rows * channels / items);
  const Conv conv{x, weight, kept, y};
  stream.pool().parallel_for(items, std::max<int64_t>(1, kSplitElements / item_elements),
                             [&](int64_t begin, int64_t end, int) {
                               for (int64_t item = begin; item < end; ++item) {
                                 const RecurrentRows& rows = sequences[item / blocks];
                                 if (rows.num_rows == 0) continue;
                                 const int64_t first = item % blocks * kConvChannels;
                                 conv.run(rows, first, std::min(kConvChannels, channels - first));
                               }
                             });
}

}  // namespace braid

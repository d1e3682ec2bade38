#include "ops/linear/cuda/few_tiles.cuh"
#include "ops/linear/cuda/few_tiles.h"

namespace braid::cuda {
namespace {

constexpr int kMostSplits = 8;  // what every device's clusters may have

// Stands for the others in questions about where it runs.
constexpr auto kSample = few_tiles<FormatId::kW4G128, 2, 1, 3, true>;

// Blocks that run at once, one on a multiprocessor, in clusters of `splits`.
int blocks_at_once(Stream& stream, int splits) {
  static int known[kMostSplits + 1] = {};  // devices of one machine are taken to be alike
  if (splits == 1) return stream.cuda().num_multiprocessors();
  if (known[splits] == 0) {
    constexpr int kMoreThanHalf = 160 * 1024;
    BRAID_CUDA_CHECK(
        cudaFuncSetAttribute(kSample, cudaFuncAttributeMaxDynamicSharedMemorySize, 226 * 1024));
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {1, static_cast<unsigned>(splits), 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1024, splits);
    config.blockDim = dim3(kFewWarps * kWarp);
    config.dynamicSmemBytes = kMoreThanHalf;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int count = 0;
    BRAID_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kSample, &config));
    known[splits] = std::max(count, 1) * splits;
  }
  return known[splits];
}

}  // namespace

bool has_bulk_copies(Stream& stream) {
  static const bool compiled = [] {
    cudaFuncAttributes attributes{};
    BRAID_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kSample));
    return attributes.ptxVersion >= 90;
  }();
  return compiled && stream.cuda().overlaps_kernels();
}

TilesShape few_tiles_shape(Stream& stream, const Products& products, int weight_bytes,
                           int piece_cols, int most_panels) {
  const int pieces = ceil_divide(products.cols, piece_cols);
  if (products.experts > 0) {
    // Short blocks, so that many can wait for memory at once, but no more of them for ten experts
    // than run at once.
    int row_warps = 2;
    while (row_warps < kFewWarps &&
           ceil_divide(products.rows, kTileRows * row_warps) * 10 > 2 * blocks_at_once(stream, 1)) {
      row_warps *= 2;
    }
    return {1, {row_warps, 1, 0}};
  }
  const bool clusters = has_bulk_copies(stream);
  TilesShape best{1, {8, 1, 0}};
  double most = 0;
  for (int panels = 1; panels <= most_panels; ++panels) {
    for (const int row_warps : {1, 2, 4, 8}) {
      if (panels > 1 && row_warps < kFewWarps) continue;
      const int block_rows = kTileRows * panels * row_warps;
      const int tiles = ceil_divide(products.rows, block_rows);
      for (int splits = 1; splits <= (clusters ? kMostSplits : 1); ++splits) {
        const bool enough = splits == 1 || pieces / splits >= kFewWarps / row_warps;
        const int at_once = blocks_at_once(stream, splits);
        const int blocks = tiles * splits;
        if (!enough || (blocks > at_once && splits > 1)) continue;
        // Inputs of eight tokens are read beside the weights of a block's rows; each further block
        // of a cluster costs about as much as a fiftieth of the device.
        const double extra = 16.0 / (block_rows * weight_bytes * 0.5);
        const double value =
            std::min(blocks, at_once) / (1 + extra) - 0.02 * at_once * (splits - 1);
        if (value > most) {
          most = value;
          best = {panels, {row_warps, splits, 0}};
        }
      }
    }
  }
  return best;
}

}  // namespace braid::cuda

#include <algorithm>

#include "ops/linear/cuda/few_tiles.h"
#include "ops/linear/cuda/few_tokens.cuh"
#include "quant/tile_layout.h"

namespace braid::cuda {
namespace {

constexpr int kMaxSplits = 8;  // what every device's clusters may have

// Blocks that run at once, in clusters of `splits`.
int blocks_at_once(Stream& stream, int splits) {
  static int known[kMaxSplits + 1] = {};  // devices of one machine are taken to be alike
  if (known[splits] == 0) {
    const auto kernel = few_tokens<BFloat16Chunk, 1, 2, 4>;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {1, static_cast<unsigned>(splits), 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1024, splits);
    config.blockDim = dim3(kFewWarps * kWarp);
    config.attrs = &cluster;
    config.numAttrs = splits > 1 ? 1 : 0;
    int count = 0;
    if (splits == 1) {
      BRAID_CUDA_CHECK(
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, kFewWarps * kWarp, 0));
      known[1] = count * stream.cuda().num_multiprocessors();
    } else {
      BRAID_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kernel, &config));
      known[splits] = std::max(count, 1) * splits;
    }
  }
  return known[splits];
}

// Tokens that meet a matrix, of experts about the most.
int tokens_at_once(const Products& products) {
  return products.experts > 0 ? ceil_divide(products.tokens, products.experts) * 2
                              : products.tokens;
}

template <typename Chunk, int kTokenTiles, int kDepth>
void launch_shape(Stream& stream, const Products& products) {
  const FewTokensShape shape =
      few_tokens_shape(stream, products, ceil_divide(products.cols, kUnitColumns));
  if (shape.row_warps == 1) {
    launch_few_tokens<Chunk, kTokenTiles, 1, kDepth>(stream, products, shape.plan);
  } else {
    launch_few_tokens<Chunk, kTokenTiles, 2, kDepth>(stream, products, shape.plan);
  }
}

// Where there are more tokens than kMostTiles tiles of eight, the kernel comes round again for the
// others.
template <typename Chunk, int kDepth, int kMostTiles>
void launch_any(Stream& stream, const Products& products) {
  if (tokens_at_once(products) <= 8 || kMostTiles == 1) {
    launch_shape<Chunk, 1, kDepth>(stream, products);
  } else {
    launch_shape<Chunk, kMostTiles, kDepth>(stream, products);
  }
}

}  // namespace

FewTokensShape few_tokens_shape(Stream& stream, const Products& products, int chunks) {
  const bool clusters = stream.cuda().overlaps_kernels();
  FewTokensShape best{2, {1}};
  // Many short blocks spend their time on finding out whose they are.
  if (products.experts > 0) return best;
  int most = 0;
  for (const int row_warps : {1, 2}) {
    const int tiles = ceil_divide(products.rows, 32 * row_warps);
    for (int splits = 1; splits <= (clusters ? kMaxSplits : 1); ++splits) {
      const bool enough = splits == 1 || chunks / splits >= 2 * kFewWarps / row_warps;
      const int blocks = tiles * splits;
      // An eighth more of them is worth a further split.
      if (enough && blocks <= blocks_at_once(stream, splits) && blocks > most + most / 8) {
        most = blocks;
        best = {row_warps, {splits}};
      }
    }
  }
  return best;
}

bool few_tokens_can(const Products& products) {
  if (products.packed == nullptr || products.format == FormatId::kF32) return false;
  if (!plain_format(products.format)) return true;
  return products.cols % 8 == 0 && reinterpret_cast<uintptr_t>(products.weights) % 16 == 0;
}

void few_tokens_products(Stream& stream, const Products& products) {
  if (products.tiles) {
    with_tile_format(products.format, [&](auto format) {
      few_tiles_of<format()>(stream, products, tokens_at_once(products));
    });
    return;
  }
  with_format(products.format, [&](auto format) {
    constexpr FormatId kFormat = format();
    if constexpr (kFormat == FormatId::kBF16) {
      launch_any<BFloat16Chunk, 4, 2>(stream, products);
    } else if constexpr (kFormat == FormatId::kF16) {
      launch_any<HalfChunk, 4, 2>(stream, products);
    } else if constexpr (kFormat != FormatId::kF32) {
      launch_any<BlockChunk<kFormat>, 2, 1>(stream, products);
    }
  });
}

}  // namespace braid::cuda

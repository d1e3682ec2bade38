#include <algorithm>

#include "ops/linear/cuda/few_tokens.cuh"

namespace braid::cuda {
namespace {

constexpr int kRowWarps = 2;
constexpr int kMaxSplits = 8;  // what every device's clusters may have
// Fewer columns a block are not worth a cluster's barriers.
constexpr int kSplitChunks = 8;
// Of the weights' share of a multiprocessor that is brought near before the inputs are there.
constexpr int kPrefetchBytes = 64 << 10;

// As many splits as give every multiprocessor a block: the rest of its registers is then free for
// the first blocks of the next kernel.
FewTokensPlan make_plan(Stream& stream, const Products& products) {
  FewTokensPlan plan{1, 0};
  if (!stream.cuda().overlaps_kernels()) return plan;  // no clusters either
  const int tiles = ceil_divide(products.rows, 32 * kRowWarps);
  const int chunks = ceil_divide(products.cols, kUnitColumns);
  if (products.experts == 0) {
    const int wanted = (stream.cuda().num_multiprocessors() + tiles / 2) / tiles;
    plan.splits = std::clamp(std::min(wanted, chunks / kSplitChunks), 1, kMaxSplits);
    if (products.row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(products.weights) % 16 == 0) {
      plan.prefetch_bytes = kPrefetchBytes / (32 * kRowWarps) / 16 * 16;
    }
  }
  return plan;
}

template <typename Chunk, int kDepth, int kMostTiles>
void launch_any(Stream& stream, const Products& products) {
  const FewTokensPlan plan = make_plan(stream, products);
  const int most =
      products.experts > 0 ? ceil_divide(products.tokens, products.experts) * 2 : products.tokens;
  // Where there are more tokens than the kernel takes, it comes round again for the others.
  if (most <= 8 || kMostTiles == 1) {
    launch_few_tokens<Chunk, 1, kRowWarps, kDepth>(stream, products, plan);
  } else if (most <= 16 || kMostTiles == 2) {
    launch_few_tokens<Chunk, std::min(kMostTiles, 2), kRowWarps, kDepth>(stream, products, plan);
  } else {
    launch_few_tokens<Chunk, kMostTiles, kRowWarps, 2>(stream, products, plan);
  }
}

}  // namespace

bool few_tokens_can(const Products& products) {
  if (products.packed == nullptr || products.format == FormatId::kF32) return false;
  if (!plain_format(products.format)) return true;
  return products.cols % 8 == 0 && reinterpret_cast<uintptr_t>(products.weights) % 16 == 0;
}

void few_tokens_products(Stream& stream, const Products& products) {
  with_format(products.format, [&](auto format) {
    constexpr FormatId kFormat = format();
    if constexpr (kFormat == FormatId::kBF16) {
      launch_any<BFloat16Chunk, 4, 4>(stream, products);
    } else if constexpr (kFormat == FormatId::kF16) {
      launch_any<HalfChunk, 4, 2>(stream, products);
    } else if constexpr (kFormat == FormatId::kQ4_0 || kFormat == FormatId::kQ8_0) {
      launch_any<BlockChunk<kFormat>, 2, 4>(stream, products);
    } else if constexpr (kFormat != FormatId::kF32) {
      launch_any<BlockChunk<kFormat>, 2, 1>(stream, products);
    }
  });
}

}  // namespace braid::cuda

#include "ops/linear/cuda/product_paths.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>

#include "base/check.h"
#include "ops/linear/cuda/few_rows.h"
#include "ops/linear/cuda/int8_stream.h"
#include "ops/linear/cuda/int8_tiles.h"
#include "ops/linear/cuda/library_product.h"
#include "ops/linear/cuda/row_warps.h"
#include "ops/linear/cuda/weight_stream.h"
#include "quant/device_tiles.h"
#include "tensor/cuda/cuda_check.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {
namespace {

// Tokens of an expert, on average, up to which a gated block may be one pass over its weights.
constexpr int kMostStreamedPerExpert = 2 * kFewTokensPerExpert;
// Tokens up to which a gated block with inputs of codes is faster by parts, which are streamed.
constexpr int64_t kFewCodedTokens = 64;
static_assert(kUsuallyStreamed == kMostStreamTokens);

ProductDevice describe(int device) {
  cudaDeviceProp properties{};
  BRAID_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return {properties.name, properties.multiProcessorCount,
          static_cast<int64_t>(cublasLtGetVersion())};
}

// A matrix for all tokens as the only expert. The list stays where it is, so that all products of a
// step with as many tokens share one copy on the device.
Products as_expert(Stream& stream, Products products) {
  static std::mutex mutex;
  static std::map<int, std::array<int32_t, 2>> lists;
  const std::lock_guard lock(mutex);
  const auto list = lists.try_emplace(products.tokens, std::array{0, products.tokens}).first;
  products.experts = 1;
  products.offsets = on_device(stream.cuda(), IndexList(list->second));
  return products;
}

bool library_may(const Products& products) {
  if (products.experts > 0) return false;
  if (products.packed == nullptr) return true;
  return products.format != FormatId::kF32;
}

}  // namespace

const ProductTable* product_table(Stream& stream) {
  if (const ProductTable* table = ProductTableScope::table()) return table;
  static std::mutex mutex;
  static std::map<int, std::optional<ProductTable>> tables;  // by device
  const std::lock_guard lock(mutex);
  const int device = stream.cuda().device();
  auto found = tables.find(device);
  if (found == tables.end()) {
    found = tables
                .emplace(device,
                         find_product_table(describe(device), std::getenv("BRAID_PRODUCT_TABLE"),
                                            built_in_product_tables()))
                .first;
  }
  return found->second ? &*found->second : nullptr;
}

ProductSize size_of(const Products& products) {
  return {.kind = products.experts > 0 ? ProductKind::kExperts : ProductKind::kMatrix,
          .format = products.format,
          .tiles = products.tiles,
          .experts = products.experts,
          .rows = products.rows,
          .cols = products.cols,
          .tokens = products.tokens};
}

ProductSize size_of(const Int8Products& products) {
  const bool experts = products.experts > 0;
  const bool gated = products.up != nullptr;
  return {.kind = gated     ? experts ? ProductKind::kGatedExperts : ProductKind::kGated
                  : experts ? ProductKind::kExperts
                            : ProductKind::kMatrix,
          .format = FormatId::kW8C,
          .tiles = true,
          .codes = true,
          .experts = products.experts,
          .rows = products.rows,
          .cols = products.cols,
          .tokens = products.tokens};
}

PathSet possible_paths(Stream& stream, const Products& products) {
  using enum ProductPath;
  const bool rounded = products.packed != nullptr && products.format != FormatId::kF32;
  const bool few_tokens = rounded && few_tokens_can(products);
  PathSet paths{kExact};
  paths.add(kFewRows, few_rows_can(products));
  paths.add(kStream, rounded && can_stream(stream, products));
  paths.add(kFewTokens, few_tokens);
  paths.add(kTiles, few_tokens);
  paths.add(kLibrary, library_may(products));
  return paths;
}

PathSet possible_paths(const Int8Products& products) {
  PathSet paths{ProductPath::kTiles};
  paths.add(ProductPath::kStream, streams_codes(products));
  return paths;
}

ProductChoice choose(Stream& stream, const Products& products) {
  if (stream.cuda().deterministic()) {
    Products alone = products;
    alone.tokens = 1;
    return fixed_choice(possible_paths(stream, alone));
  }
  const PathSet possible = possible_paths(stream, products);
  // Inputs that are not rounded have few paths, which no table is about.
  const ProductTable* table = products.packed == nullptr ? nullptr : product_table(stream);
  return choose(table, size_of(products), possible);
}

ProductChoice choose(Stream& stream, const Int8Products& products) {
  return choose(stream.cuda().deterministic() ? nullptr : product_table(stream), size_of(products),
                possible_paths(products));
}

void run_path(Stream& stream, const Products& products, ProductChoice choice) {
  switch (choice.path) {
    case ProductPath::kFewRows:
      return few_rows_products(stream, products);
    case ProductPath::kStream:
      if (!row_warps_can(products, choice.variant)) return stream_products(stream, products);
      return stream_products_by(stream, products, choice.variant);
    case ProductPath::kFewTokens:
      return few_tokens_products(stream, products);
    case ProductPath::kTiles:
      return grouped_tiles_products(stream,
                                    products.experts > 0 ? products : as_expert(stream, products));
    case ProductPath::kLibrary:
      if (choice.variant == 0 ? library_products(stream, products)
                              : library_products_by(stream, products, choice.variant)) {
        return;
      }
      return exact_products(stream, products);
    case ProductPath::kExact:
      return exact_products(stream, products);
    case ProductPath::kWide:
    case ProductPath::kParts:
      break;
  }
  BRAID_CHECK(false, "{} of single products", to_string(choice));
}

void run_path(Stream& stream, const Int8Products& products, ProductChoice choice) {
  if (choice.path == ProductPath::kStream) return stream_code_products(stream, products);
  int8_tiles_products(stream, products, choice.variant);
}

ProductPath gated_path(Stream& stream, const GatedMlpCall& call, bool beside) {
  using enum ProductPath;
  const QuantFormat& format = *call.gate->format;
  const bool routed = call.groups != nullptr, codes = call.x->token_codes.rank() == 2;
  const ProductSize size{.kind = routed ? ProductKind::kGatedExperts : ProductKind::kGated,
                         .format = format.id,
                         .tiles = in_tiles(format),
                         .codes = codes,
                         .experts = routed ? call.gate->shape.dim(0) : 0,
                         .rows = call.down->cols(),
                         .cols = call.down->rows(),
                         .tokens = call.out.dim(0)};
  PathSet possible{kParts};
  possible.add(kTiles, codes);
  possible.add(kStream, !codes && size.tokens <= (routed ? kMostStreamedPerExpert * size.experts
                                                         : kMostStreamTokens));
  possible.add(kWide, !codes && routed);
  const bool fixed = stream.cuda().deterministic();
  // Sums of codes are exact: there the number of tokens may decide. (On other streams inputs of few
  // tokens are not codes.)
  if (fixed && codes && !routed && size.tokens <= kFewCodedTokens) return kParts;
  const bool by_constants = beside || (codes && fixed);
  return choose(by_constants ? nullptr : product_table(stream), size, possible).path;
}

}  // namespace braid::cuda

#include "ops/linear/cuda/product_choice.h"

#include <spdlog/spdlog.h>

#include "ops/linear/cuda/products.h"

namespace braid::cuda {
namespace {

// Up to this many tokens exact_products() reads weights about once.
constexpr int64_t kFewExactTokens = 64;
// A block with inputs of codes that is wider is faster with gate and up as products of their own.
constexpr int64_t kMostCodedWidth = 2048;

int64_t most_few_tokens(const ProductSize& size) {
  return cuda::most_few_tokens(Products{.format = size.format, .tiles = size.tiles});
}

ProductChoice usual_matrix(const ProductSize& size, PathSet possible) {
  using enum ProductPath;
  if (size.codes) return {possible.has(kStream) ? kStream : kTiles};
  if (possible.has(kFewRows)) return {kFewRows};
  const int64_t most_streamed = size.tiles ? most_few_tokens(size) : kUsuallyStreamed;
  if (possible.has(kStream) && size.tokens <= most_streamed) return {kStream};
  if (possible.has(kFewTokens)) {
    if (size.tokens <= most_few_tokens(size)) return {kFewTokens};
  } else if (size.tokens <= kFewExactTokens) {
    return {kExact};
  }
  return {possible.has(kLibrary) ? kLibrary : kExact};
}

ProductChoice usual_experts(const ProductSize& size, PathSet possible) {
  using enum ProductPath;
  if (size.codes) return {kTiles};
  if (!possible.has(kFewTokens)) return {kExact};
  if (size.tokens > kFewTokensPerExpert * size.experts) return {kTiles};
  return {possible.has(kStream) ? kStream : kFewTokens};
}

const ProductTable* scoped_table = nullptr;

}  // namespace

int most_few_tokens(const Products& products) {
  return products.format == FormatId::kBF16 ? 8 : products.tiles ? 64 : 32;
}

ProductChoice usual_choice(const ProductSize& size, PathSet possible) {
  using enum ProductPath;
  switch (size.kind) {
    case ProductKind::kMatrix:
      return usual_matrix(size, possible);
    case ProductKind::kExperts:
      return usual_experts(size, possible);
    case ProductKind::kGated:
      if (size.codes) {
        const bool whole = size.rows <= kMostCodedWidth || !possible.has(kParts);
        return {whole && possible.has(kTiles) ? kTiles : kParts};
      }
      return {possible.has(kStream) && size.tokens <= kUsuallyStreamed ? kStream : kParts};
    case ProductKind::kGatedExperts:
      if (size.codes) return {possible.has(kTiles) ? kTiles : kParts};
      if (possible.has(kStream) && size.tokens <= kFewTokensPerExpert * size.experts) {
        return {kStream};
      }
      return {possible.has(kWide) ? kWide : kParts};
  }
  return {};
}

ProductChoice choose(const ProductTable* table, const ProductSize& size, PathSet possible) {
  if (table != nullptr) {
    const std::optional<ProductChoice> found = table->find(size);
    if (found && possible.has(found->path)) return *found;
  }
  return usual_choice(size, possible);
}

ProductChoice fixed_choice(PathSet possible) {
  using enum ProductPath;
  return {possible.has(kFewRows) ? kFewRows : possible.has(kStream) ? kStream : kExact};
}

ProductTableScope::ProductTableScope(const ProductTable& table) : outer_(scoped_table) {
  scoped_table = &table;
}
ProductTableScope::~ProductTableScope() { scoped_table = outer_; }
const ProductTable* ProductTableScope::table() { return scoped_table; }

std::optional<ProductTable> find_product_table(const ProductDevice& device, const char* file,
                                               std::span<const std::string_view> built_in) {
  std::optional<ProductTable> found;
  if (file != nullptr && *file != '\0') {
    found = ProductTable::read(file);
    spdlog::info("products: {} for {} shapes, measured on {}", file, found->num_shapes(),
                 found->device());
  } else {
    for (const std::string_view text : built_in) {
      ProductTable table = ProductTable::parse(text, "a product table of this program");
      if (table.device() == device.name && table.multiprocessors() == device.multiprocessors) {
        found = std::move(table);
      }
    }
    if (!found && !built_in.empty()) {
      spdlog::info(
          "products: no table was measured on {} with {} multiprocessors; kernels are "
          "chosen by constants (cuda_product_table measures one for BRAID_PRODUCT_TABLE)",
          device.name, device.multiprocessors);
    }
  }
  if (found && found->library_version() != device.library_version) found->forget_library_ranks();
  return found;
}

}  // namespace braid::cuda

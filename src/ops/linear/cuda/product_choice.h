#pragma once

#include <optional>
#include <span>

#include "ops/linear/cuda/product_table.h"

namespace braid::cuda {

class PathSet {
 public:
  PathSet(std::initializer_list<ProductPath> paths = {}) {
    for (const ProductPath path : paths) add(path, true);
  }
  void add(ProductPath path, bool wanted) {
    if (wanted) bits_ |= 1u << static_cast<int>(path);
  }
  bool has(ProductPath path) const { return (bits_ >> static_cast<int>(path) & 1) != 0; }

 private:
  unsigned bits_ = 0;
};

// Tokens of one matrix up to which its weights are streamed, without a table (kMostStreamTokens of
// weight_stream.h).
inline constexpr int kUsuallyStreamed = 32;

// Without a table: by constants. Of `possible` paths; kExact and kParts, of matrices and of gated
// blocks, are the last resort and need not be among them.
ProductChoice usual_choice(const ProductSize& size, PathSet possible);

// The table's choice if it has one near and that is possible, otherwise the usual one.
ProductChoice choose(const ProductTable* table, const ProductSize& size, PathSet possible);

// On a deterministic stream, whatever a table says: the choice depends on the matrix alone, not on
// the number of tokens. Of matrices and of experts, with the paths that are possible for one token.
ProductChoice fixed_choice(PathSet possible);

// While one of these lives, its table takes the place of those of all devices; for benches and
// tests. The table must outlive it.
class ProductTableScope {
 public:
  explicit ProductTableScope(const ProductTable& table);
  ~ProductTableScope();
  ProductTableScope(const ProductTableScope&) = delete;
  ProductTableScope& operator=(const ProductTableScope&) = delete;

  // Null if none lives.
  static const ProductTable* table();

 private:
  const ProductTable* outer_;
};

// Tables that belong to this program, as text; src/ops/linear/cuda/tables.
std::span<const std::string_view> built_in_product_tables();

// The device whose products are to be computed.
struct ProductDevice {
  std::string name;
  int multiprocessors = 0;
  int64_t library_version = 0;
};
// The table of `file` (null or empty: none is given; one of another device is taken all the same),
// or of `built_in` the one measured on such a device, or nothing; says what it found in the log.
// Throws Error for files as ProductTable::read() does.
std::optional<ProductTable> find_product_table(const ProductDevice& device, const char* file,
                                               std::span<const std::string_view> built_in);

}  // namespace braid::cuda

#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quant/quant_format.h"

namespace braid::cuda {

// Which kernels compute a product on a CUDA device, as measured there. Plain host code.

enum class ProductKind : uint8_t {
  kMatrix,        // linear()
  kExperts,       // grouped_linear()
  kGated,         // gated_mlps() of one block: gate, up, activation, down
  kGatedExperts,  // of experts
};

enum class ProductPath : uint8_t {
  kFewRows,    // few_rows.h
  kStream,     // weight_stream.h, int8_stream.h
  kFewTokens,  // few_tokens_products()
  kTiles,      // tiles of tokens in shared memory: grouped_tiles_products(), int8_products.h
  kWide,       // wide_products.h
  kLibrary,    // library_products()
  kExact,      // exact_products()
  kParts,      // of a gated block: each product by itself
};
inline constexpr int kNumProductPaths = static_cast<int>(ProductPath::kParts) + 1;

// How a path is taken; 0: by its own rule.
//   kStream   of a matrix with inputs of bfloat16: row warps, 1, 2, 4 or 8 (weight_stream.h)
//   kTiles    with inputs of int8 codes: tokens of a tile, 64, 128 or, of a matrix, 256
//   kLibrary  which of the library's candidates, in its own order; below kLibraryRanks
struct ProductChoice {
  ProductPath path = ProductPath::kExact;
  int variant = 0;

  bool operator==(const ProductChoice&) const = default;
};
inline constexpr int kLibraryRanks = 8;

struct ProductSize {
  ProductKind kind = ProductKind::kMatrix;
  FormatId format = FormatId::kBF16;
  bool tiles = false;          // quant/device_tiles.h; otherwise rows as in files
  bool codes = false;          // inputs of int8 codes with one scale a token; otherwise bfloat16
  int64_t experts = 0;         // 0: one matrix
  int64_t rows = 0, cols = 0;  // outputs and inputs of a token; gated: width and hidden size
  int64_t tokens = 0;          // of experts: pairs of a token and an expert

  bool has_experts() const {
    return kind == ProductKind::kExperts || kind == ProductKind::kGatedExperts;
  }
  bool operator==(const ProductSize&) const = default;
};

// Whether products of this kind may be computed so at all.
bool product_choice_exists(const ProductSize& size, ProductChoice choice);

// "stream", "library/2"
std::string to_string(ProductChoice choice);

// What was the fastest at some sizes, on one kind of device. A text file:
//
//   braid product table 1
//   device NVIDIA H200
//   multiprocessors 132
//   cublaslt 130001
//   # kind  weights layout  inputs  experts rows cols  then tokens and choice, ascending
//   matrix bf16 rows bf16 0 8192 2816  1 stream  64 library/2  2048 library
//   gated-experts w8c tiles int8 512 512 2048  20480 tiles/128
//
// The version of cuBLASLt is what the ranks of the library's candidates depend on.
class ProductTable {
 public:
  ProductTable() = default;
  ProductTable(std::string device, int multiprocessors, int64_t library_version)
      : device_(std::move(device)),
        multiprocessors_(multiprocessors),
        library_version_(library_version) {}

  // Throws Error naming `name` and the line.
  static ProductTable parse(std::string_view text, const std::string& name);
  // Throws Error if the file cannot be read, too.
  static ProductTable read(const std::filesystem::path& path);
  std::string to_text() const;

  const std::string& device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }
  int64_t library_version() const { return library_version_; }
  // Sizes without their tokens.
  size_t num_shapes() const { return shapes_.size(); }

  // Replaces what is known of the same size.
  void add(const ProductSize& size, ProductChoice choice);

  // The choice of the nearest shape of the same kind, weights and inputs whose rows, columns and
  // experts differ by factors that come to at most kNear together, of equals the first; and of its
  // measured numbers of tokens the smallest that is not below `size.tokens`, unless that is twice
  // as many or more: then nothing. Beyond all measured numbers the largest, if that is at least
  // kManyTokens. Ranks of the library count for the very size that was measured, otherwise they
  // are 0.
  static constexpr double kNear = 1.5;
  static constexpr int64_t kManyTokens = 1024;
  std::optional<ProductChoice> find(const ProductSize& size) const;

  // From now on all ranks are 0.
  void forget_library_ranks();

 private:
  struct Measured {
    int64_t tokens;
    ProductChoice choice;
  };
  struct Shape {
    ProductSize size;                // tokens: 0
    std::vector<Measured> measured;  // ascending
  };

  const Shape* nearest(const ProductSize& size) const;

  std::string device_;
  int multiprocessors_ = 0;
  int64_t library_version_ = 0;
  std::vector<Shape> shapes_;
};

}  // namespace braid::cuda

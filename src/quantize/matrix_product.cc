#include "quantize/matrix_product.h"

#include <algorithm>
#include <vector>

#include "quantize/matrix_product_kernels.h"

namespace braid {
namespace {

// A block of A, [rows, depth], stays in the second-level cache while B's panels pass.
constexpr int64_t kDepthBlock = 256;
constexpr int64_t kRowBlock = 192;
constexpr int64_t kColBlock = 512;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns of `width` neighbours: out[panel][k][width], filled up with zeros.
template <typename T>
void pack(const T* from, int64_t count, int64_t stride, int64_t depth, int64_t depth_stride,
          int width, T* out) {
  for (int64_t begin = 0; begin < count; begin += width) {
    const int64_t n = std::min<int64_t>(width, count - begin);
    const T* panel = from + begin * stride;
    if (stride == 1) {
      for (int64_t k = 0; k < depth; ++k) {
        const T* row = panel + k * depth_stride;
        T* to = out + k * width;
        std::copy(row, row + n, to);
        std::fill(to + n, to + width, T{});
      }
    } else {
      for (int64_t i = 0; i < width; ++i) {
        const T* row = panel + i * stride;
        for (int64_t k = 0; k < depth; ++k)
          out[k * width + i] = i < n ? row[k * depth_stride] : T{};
      }
    }
    out += depth * width;
  }
}

template <typename T>
const ProductKernel<T>& kernel();
template <>
const ProductKernel<float>& kernel<float>() {
  return BRAID_KERNELS(kMatrixProductKernels).f32;
}
template <>
const ProductKernel<double>& kernel<double>() {
  return BRAID_KERNELS(kMatrixProductKernels).f64;
}

// What a thread packs into.
template <typename T>
struct Panels {
  std::vector<T> a, b;
};

template <typename T>
class Product {
 public:
  explicit Product(const MatrixProduct<T>& p) : p_(p), kernel_(kernel<T>()) {}

  void run(ThreadPool& pool) {
    if (p_.rows <= 0 || p_.cols <= 0 || p_.depth <= 0) return;
    // Enough blocks for all threads, in whole tiles.
    row_block_ = kRowBlock;
    col_block_ = kColBlock;
    const auto blocks = [&] {
      return ceil_div(p_.rows, row_block_) * ceil_div(p_.cols, col_block_);
    };
    while (blocks() < 4 * pool.num_threads() && col_block_ > 64) col_block_ /= 2;
    while (blocks() < 4 * pool.num_threads() && row_block_ > 48) row_block_ /= 2;
    const int64_t across = ceil_div(p_.cols, col_block_);
    std::vector<Panels<T>> panels(static_cast<size_t>(pool.num_threads()));
    const auto depth = static_cast<size_t>(std::min(kDepthBlock, p_.depth));
    for (Panels<T>& own : panels) {
      own.a.resize(depth * static_cast<size_t>(row_block_ + kMaxProductTileRows));
      own.b.resize(depth * static_cast<size_t>(col_block_ + kMaxProductTileCols));
    }
    pool.parallel_for(blocks(), 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t block = begin; block < end; ++block) {
        multiply_block(block / across * row_block_, block % across * col_block_, panels[thread]);
      }
    });
  }

 private:
  bool wanted(int64_t row, int64_t rows, int64_t col, int64_t cols) const {
    using Part = typename MatrixProduct<T>::Part;
    if (p_.part == Part::kUpper) return col + cols > row;
    if (p_.part == Part::kLower) return row + rows > col;
    return true;
  }

  void multiply_block(int64_t row, int64_t col, Panels<T>& own) const {
    const int64_t rows = std::min(row_block_, p_.rows - row);
    const int64_t cols = std::min(col_block_, p_.cols - col);
    if (!wanted(row, rows, col, cols)) return;
    const int tile_rows = kernel_.tile_rows, tile_cols = kernel_.tile_cols;
    // Blocks of depth begin at multiples of their size, so that sums do not depend on what is
    // passed over.
    const int64_t first = p_.b_lower ? col / kDepthBlock * kDepthBlock : 0;
    const int64_t last = p_.a_lower ? std::min(p_.depth, row + rows) : p_.depth;
    for (int64_t k = first; k < last; k += kDepthBlock) {
      const int64_t depth = std::min(kDepthBlock, p_.depth - k);
      pack(p_.a + row * p_.a_row_stride + k * p_.a_depth_stride, rows, p_.a_row_stride, depth,
           p_.a_depth_stride, tile_rows, own.a.data());
      pack(p_.b + col * p_.b_col_stride + k * p_.b_depth_stride, cols, p_.b_col_stride, depth,
           p_.b_depth_stride, tile_cols, own.b.data());
      for (int64_t j = 0; j < cols; j += tile_cols) {
        for (int64_t i = 0; i < rows; i += tile_rows) {
          if (!wanted(row + i, tile_rows, col + j, tile_cols)) continue;
          multiply_tile(depth, own.a.data() + i * depth, own.b.data() + j * depth,
                        p_.c + (row + i) * p_.c_stride + col + j,
                        std::min<int64_t>(tile_rows, rows - i),
                        std::min<int64_t>(tile_cols, cols - j));
        }
      }
    }
  }

  void multiply_tile(int64_t depth, const T* a, const T* b, T* c, int64_t rows,
                     int64_t cols) const {
    if (rows == kernel_.tile_rows && cols == kernel_.tile_cols) {
      kernel_.tile(depth, a, b, p_.alpha, c, p_.c_stride);
      return;
    }
    T edge[kMaxProductTileRows * kMaxProductTileCols] = {};
    for (int64_t i = 0; i < rows; ++i) {
      std::copy(c + i * p_.c_stride, c + i * p_.c_stride + cols, edge + i * kernel_.tile_cols);
    }
    kernel_.tile(depth, a, b, p_.alpha, edge, kernel_.tile_cols);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy(edge + i * kernel_.tile_cols, edge + i * kernel_.tile_cols + cols,
                c + i * p_.c_stride);
    }
  }

  const MatrixProduct<T>& p_;
  const ProductKernel<T>& kernel_;
  int64_t row_block_ = 0, col_block_ = 0;
};

}  // namespace

void add_product(ThreadPool& pool, const MatrixProduct<float>& product) {
  Product<float>(product).run(pool);
}
void add_product(ThreadPool& pool, const MatrixProduct<double>& product) {
  Product<double>(product).run(pool);
}

void add_scaled(int64_t count, float alpha, const float* x, float* y) {
  BRAID_KERNELS(kMatrixProductKernels).add_scaled(count, alpha, x, y);
}

}  // namespace braid

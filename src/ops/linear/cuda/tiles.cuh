#pragma once

// Tiles of weights and inputs on their way to the tensor cores: kTileColumns columns of some rows
// in shared memory. A row has 128 bytes there, whose 16-byte pieces are permuted so that eight
// rows' pieces of one column lie in different banks (the 128-byte swizzle of the tensor cores).

#include "ops/cuda/launch.cuh"
#include "ops/linear/cuda/tensor_core.cuh"
#include "ops/linear/cuda/tile_rows.cuh"

namespace braid::cuda {

inline constexpr int kTileColumns = 64;
inline constexpr int kTileThreads = 256;

__device__ __forceinline__ uint32_t place(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + ((piece ^ (row & 7)) * 16));
}

// A tile of weights: kRows rows of which the first `rows` exist, brought by kTileThreads threads.
// `memory` is kMemoryBytes of shared memory for its own use. The caller begins, fetches a step,
// commits the copies, stores the step some time later; sums are multiplied by row_scale() at the
// end.

// Formats that are copied as they are.
template <int kRows>
struct CopiedTile {
  static constexpr int kMemoryBytes = 0;

  __device__ CopiedTile(const Products& p, const uint8_t* weights, int rows, unsigned char*)
      : weights_(weights), row_bytes_(p.row_bytes), cols_(p.cols), rows_(rows) {}
  __device__ void begin() {}
  __device__ void fetch(int step, uint32_t shared) {
#pragma unroll
    for (int i = 0; i < kRows * 8 / kTileThreads; ++i) {
      const int item = threadIdx.x + i * kTileThreads;
      const int row = item / 8, piece = item % 8;
      const int col = step * kTileColumns + piece * 8;
      const bool valid = row < rows_ && col < cols_;
      copy_async(shared + place(row, piece),
                 valid ? weights_ + row * row_bytes_ + int64_t{col} * 2 : weights_, valid);
    }
  }
  __device__ void store(unsigned char*) {}
  __device__ float row_scale(int) const { return 1; }

 private:
  const uint8_t* weights_;
  int64_t row_bytes_;
  int cols_, rows_;
};

// Formats that are expanded on the way: fetch() begins to read, store() writes bfloat16.
template <typename Row, int kRows>
struct ExpandedTile {
  static constexpr int kMemoryBytes = 0;
  static constexpr int kItems = kRows * (kTileColumns / kUnitColumns) * 4 / kTileThreads;

  __device__ ExpandedTile(const Products& p, const uint8_t* weights, int rows, unsigned char*)
      : weights_(weights), row_bytes_(p.row_bytes), units_(p.cols / kUnitColumns), rows_(rows) {}
  __device__ void begin() {}
  __device__ float row_scale(int) const { return 1; }
  __device__ void fetch(int step, uint32_t) {
    step_ = step;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (row_of(i) < rows_ && unit() < units_) {
        raw_[i] = load_unit(Row(weights_, row_bytes_, row_of(i)), unit(), quad(), units_);
      }
    }
  }
  __device__ void store(unsigned char* tile) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      uint32_t w[4] = {};
      if (row_of(i) < rows_ && unit() < units_) Row::expand_pairs(raw_[i], unit(), quad(), w);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = Row::column(unit() % 2, quad(), 4 * half);  // in the tile
        *reinterpret_cast<uint2*>(tile + place(row_of(i), col / 8) + col % 8 * 2) =
            make_uint2(w[2 * half], w[2 * half + 1]);
      }
    }
  }

 private:
  // Eight neighbouring threads have the two units of a row.
  __device__ static int row_of(int i) { return (threadIdx.x + i * kTileThreads) / 8; }
  __device__ int unit() const { return step_ * 2 + threadIdx.x / 4 % 2; }
  __device__ static int quad() { return threadIdx.x % 4; }

  const uint8_t* weights_;
  int64_t row_bytes_;
  int units_, rows_;
  int step_ = 0;
  typename Row::Raw raw_[kItems] = {};
};

// Rows of LinearInput::packed; those from `count` on are zero. kTokens is a multiple of 32.
template <int kTokens>
__device__ __forceinline__ void fetch_inputs(const uint16_t* inputs, int64_t stride, int count,
                                             int step, uint32_t shared) {
#pragma unroll
  for (int i = 0; i < kTokens * 8 / kTileThreads; ++i) {
    const int item = threadIdx.x + i * kTileThreads;
    const int token = item / 8, piece = item % 8;
    // Inputs have zeros up to a multiple of kTileColumns columns.
    copy_async(shared + place(token, piece),
               inputs + (token < count ? token : 0) * stride + step * kTileColumns + piece * 8,
               token < count);
  }
}

}  // namespace braid::cuda

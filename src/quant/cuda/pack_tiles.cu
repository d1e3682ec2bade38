#include "quant/cuda/pack_tiles.h"
#include "quant/device_tiles.h"
#include "tensor/buffer.h"
#include "tensor/cuda/cuda_check.h"

namespace braid::cuda {
namespace {

// Where a format has its codes and scales in a row of a file.
struct Q4_0Row {
  static constexpr int kBits = 4, kGroup = 32;
  static __device__ uint32_t code(const uint8_t* row, int col) {
    const uint32_t byte = row[col / 32 * 18 + 2 + col % 16];
    return col % 32 < 16 ? byte & 15 : byte >> 4;
  }
  static __device__ const uint8_t* scale(const uint8_t* row, int group) { return row + group * 18; }
};
struct Q8_0Row {
  static constexpr int kBits = 8, kGroup = 32;
  static __device__ uint32_t code(const uint8_t* row, int col) {
    return row[col / 32 * 34 + 2 + col % 32];
  }
  static __device__ const uint8_t* scale(const uint8_t* row, int group) { return row + group * 34; }
};

// A block packs a panel.
template <typename Row>
__global__ void pack(const uint8_t* rows, uint8_t* panels, int matrix_rows, int matrix_panels,
                     int cols, int64_t row_bytes) {
  const int64_t matrix = blockIdx.x / matrix_panels;
  const int first = static_cast<int>(blockIdx.x % matrix_panels) * kTileRows;
  uint8_t* const panel = panels + blockIdx.x * kTileRows * row_bytes;
  const auto row_at = [&](int i) -> const uint8_t* {
    return first + i < matrix_rows ? rows + (matrix * matrix_rows + first + i) * row_bytes
                                   : nullptr;
  };
  constexpr int kTileCols = Row::kBits == 4 ? 64 : 32;
  const int tiles = cols / kTileCols;
  for (int item = threadIdx.x; item < tiles * 32; item += blockDim.x) {
    const int lane = item % 32;
    uint32_t words[4];
    for (int w = 0; w < 4; ++w) {
      const int half = Row::kBits == 4 ? w % 2 : w / 2;
      const uint8_t* row = row_at(lane / 4 + 8 * half);
      uint32_t word = 0;
      for (int i = 0; i < 32 / Row::kBits && row != nullptr; ++i) {
        if (Row::kBits == 4) {
          const int col = item / 32 * kTileCols + w / 2 * 32 + lane % 4 * 8 + i;
          word |= Row::code(row, col) << (i / 2 * 4 + i % 2 * 16);
        } else {
          const int col = item / 32 * kTileCols + lane % 4 * 8 + w % 2 * 4 + i;
          word |= Row::code(row, col) << (8 * i);
        }
      }
      words[w] = word;
    }
    *reinterpret_cast<uint4*>(panel + item * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  uint8_t* const scales = panel + tiles * 512;
  constexpr bool kTwoGroups = Row::kGroup < kTileCols;
  for (int item = threadIdx.x; item < cols / Row::kGroup * kTileRows; item += blockDim.x) {
    const int row_pair = kTwoGroups ? item / 4 % 8 : item / 2 % 8;
    const int group = kTwoGroups ? item / 32 * 2 + item / 2 % 2 : item / 16;
    const uint8_t* row = row_at(row_pair + item % 2 * 8);
    for (int i = 0; i < 2; ++i) {
      scales[2 * item + i] = row != nullptr ? Row::scale(row, group)[i] : 0;
    }
  }
}

}  // namespace

Weight pack_tiles(const Weight& weight) {
  const QuantFormat* format = tile_format(*weight.format, weight.cols());
  if (format == nullptr || weight.shape.rank() < 2 || weight.rows() == 0) return weight;
  Weight tiles = weight;
  tiles.format = format;
  const auto memory =
      std::make_shared<Buffer>(static_cast<size_t>(tiles.size_bytes()), weight.device);
  const int64_t matrices = weight.shape.num_elements() / (weight.rows() * weight.cols());
  const int matrix_panels = static_cast<int>((weight.rows() + kTileRows - 1) / kTileRows);
  const auto kernel = format->id == FormatId::kQ4_0 ? pack<Q4_0Row> : pack<Q8_0Row>;
  BRAID_CUDA_CHECK(cudaSetDevice(weight.device.index));
  kernel<<<static_cast<unsigned>(matrices * matrix_panels), 256>>>(
      reinterpret_cast<const uint8_t*>(weight.data), reinterpret_cast<uint8_t*>(memory->data()),
      static_cast<int>(weight.rows()), matrix_panels, static_cast<int>(weight.cols()),
      weight.row_bytes());
  BRAID_CUDA_CHECK(cudaGetLastError());
  BRAID_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  tiles.data = memory->data();
  tiles.owner = memory;
  return tiles;
}

}  // namespace braid::cuda

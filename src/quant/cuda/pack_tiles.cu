#include <cuda_bf16.h>

#include "quant/cuda/pack_tiles.h"
#include "quant/tile_layout.h"
#include "quant/tiled_weight.h"
#include "tensor/buffer.h"
#include "tensor/cuda/cuda_check.h"

namespace braid::cuda {
namespace {

// Where a format has its codes and scales in a row of a file; the widths are those of its tiles.
template <FormatId kFormat>
struct FileLayout {
  using Layout = TileLayout<kFormat>;
  static constexpr bool kRowHeader = Layout::kGroup == 0;
  static constexpr int kHeader = kRowHeader ? 8 : 0;
  static constexpr int kScaleOffset = Layout::kZeros ? 2 : 0;
  static constexpr int kCodesOffset = kRowHeader ? 0 : kScaleOffset + Layout::kScaleBytes;
  static constexpr int kGroup = kRowHeader ? 32 : Layout::kGroup;
  static constexpr int kBlockBytes = kCodesOffset + kGroup * Layout::kBits / 8;

  static __device__ const uint8_t* block(const uint8_t* row, int group) {
    return row + kHeader + group * kBlockBytes;
  }
  static __device__ uint32_t code(const uint8_t* row, int col) {
    const uint8_t* codes = block(row, col / kGroup) + kCodesOffset;
    const int at = col % kGroup;
    if (Layout::kBits == 8) return codes[at];
    const uint32_t byte = codes[at / 32 * 16 + at % 16];
    return at % 32 < 16 ? byte & 15 : byte >> 4;
  }
};

// A block packs a panel.
template <FormatId kFormat>
__global__ void pack(const uint8_t* rows, uint8_t* panels, int matrix_rows, int matrix_panels,
                     int cols, int64_t row_bytes) {
  using Layout = TileLayout<kFormat>;
  using File = FileLayout<kFormat>;
  const int64_t matrix = blockIdx.x / matrix_panels;
  const int first = static_cast<int>(blockIdx.x % matrix_panels) * kTileRows;
  uint8_t* const panel = panels + blockIdx.x * kTileRows * row_bytes;
  const auto row_at = [&](int i) -> const uint8_t* {
    return first + i < matrix_rows ? rows + (matrix * matrix_rows + first + i) * row_bytes
                                   : nullptr;
  };
  const int units = cols / Layout::kUnitCols;

  constexpr int kRunCols = Layout::kBits == 4 ? 64 : 32;
  constexpr int kUnitItems = Layout::kCodeBytes / 16;
  for (int item = threadIdx.x; item < units * kUnitItems; item += blockDim.x) {
    const int unit = item / kUnitItems, place = item % kUnitItems;
    const int lane = place % 32, first_row = place / 32 % 2 * 16 + lane / 4;
    const int first_col = unit * Layout::kUnitCols + place / 64 * kRunCols + lane % 4 * 8;
    uint32_t words[4];
    for (int w = 0; w < 4; ++w) {
      const uint8_t* row = row_at(first_row + 8 * (Layout::kBits == 4 ? w % 2 : w / 2));
      uint32_t word = 0;
      for (int i = 0; i < 32 / Layout::kBits && row != nullptr; ++i) {
        if (Layout::kBits == 4) {
          word |= File::code(row, first_col + w / 2 * 32 + i) << (i / 2 * 4 + i % 2 * 16);
        } else {
          word |= (File::code(row, first_col + w % 2 * 4 + i) ^ 0x80) << (8 * i);
        }
      }
      words[w] = word;
    }
    *reinterpret_cast<uint4*>(panel + unit * Layout::kUnitBytes + place * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Of a row without a group: its header.
  const int groups = File::kRowHeader ? 1 : cols / File::kGroup;
  for (int item = threadIdx.x; item < groups * kTileRows; item += blockDim.x) {
    const int group = item / kTileRows, i = item % kTileRows;
    const uint8_t* row = row_at(i / 4 + i % 4 * 8);
    if constexpr (File::kRowHeader) {
      uint8_t* const to = panel + units * Layout::kUnitBytes + i * 4;
      for (int b = 0; b < 8; ++b) to[b / 4 * 4 * kTileRows + b % 4] = row != nullptr ? row[b] : 0;
    } else {
      constexpr int kGroups = Layout::kGroups == 0 ? 1 : Layout::kGroups;
      uint8_t* const to = panel + group / kGroups * Layout::kUnitBytes + Layout::kCodeBytes +
                          group % kGroups * Layout::kGroupBytes;
      const uint8_t* block = row != nullptr ? File::block(row, group) : nullptr;
      for (int b = 0; b < Layout::kScaleBytes; ++b) {
        to[i * Layout::kScaleBytes + b] = block != nullptr ? block[File::kScaleOffset + b] : 0;
      }
      if (Layout::kZeros) {
        const float zero = block != nullptr ? block[0] : 0.0f;
        reinterpret_cast<__nv_bfloat16*>(to + kTileRows * Layout::kScaleBytes)[i] =
            __float2bfloat16(zero * -0x1p-6f);
      }
    }
  }
}

}  // namespace

Weight pack_tiles(const Weight& weight) {
  Weight tiles = in_tile_layout(weight);
  if (tiles.format == weight.format) return weight;
  const auto memory =
      std::make_shared<Buffer>(static_cast<size_t>(tiles.size_bytes()), weight.device);
  const int64_t matrices = weight.shape.num_elements() / (weight.rows() * weight.cols());
  const int matrix_panels = static_cast<int>((weight.rows() + kTileRows - 1) / kTileRows);
  BRAID_CUDA_CHECK(cudaSetDevice(weight.device.index));
  with_tile_format(tiles.format->id, [&](auto id) {
    pack<id()><<<static_cast<unsigned>(matrices * matrix_panels), 256>>>(
        reinterpret_cast<const uint8_t*>(weight.data), reinterpret_cast<uint8_t*>(memory->data()),
        static_cast<int>(weight.rows()), matrix_panels, static_cast<int>(weight.cols()),
        weight.row_bytes());
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
  BRAID_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  tiles.data = memory->data();
  tiles.owner = memory;
  return tiles;
}

}  // namespace braid::cuda

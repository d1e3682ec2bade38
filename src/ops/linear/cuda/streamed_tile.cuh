#pragma once

// Weights in the layout of quant/device_tiles.h for kernels that take tiles from shared memory
// (tiles.cuh): brought as they are, several steps ahead, and expanded from shared memory.

#include "ops/linear/cuda/tiles.cuh"

namespace braid::cuda {

template <FormatId kFormat>
struct StreamedTile {
  using Layout = TileLayout<kFormat>;
  static constexpr int kRows = 128, kPanels = kRows / kTileRows;
  static constexpr bool kRowScale = Layout::kGroup == 0;
  // What a step takes of a panel: half a unit with all its scales, a unit, or two.
  static constexpr bool kHalfUnit = Layout::kUnitCols > kTileColumns;
  static constexpr int kUnits = kHalfUnit ? 1 : kTileColumns / Layout::kUnitCols;
  static constexpr int kCodeBytes = kHalfUnit ? Layout::kCodeBytes / 2 : Layout::kCodeBytes;
  static constexpr int kUnitBytes = kCodeBytes + Layout::kGroups * Layout::kGroupBytes;
  static constexpr int kPanelBytes = kUnits * kUnitBytes;
  // A slot is filled again two steps after it was read: as many of the caller's first steps may
  // have no barrier between them.
  static constexpr int kAhead = 4, kSlots = kAhead + 2;
  static constexpr int kMemoryBytes = kSlots * kPanels * kPanelBytes;

  __device__ StreamedTile(const Products& p, const uint8_t* weights, int rows,
                          unsigned char* memory)
      : weights_(weights),
        panel_bytes_(kTileRows * p.row_bytes),
        units_(p.cols / Layout::kUnitCols),
        panels_((rows + kTileRows - 1) / kTileRows),
        memory_(memory) {}

  // Before anything else, by all threads.
  __device__ void begin() {
    for (int step = 0; step < kAhead; ++step) copy(step);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
  }
  // The copies belong to the group that the caller commits next, and are needed kAhead steps later.
  __device__ void fetch(int step, uint32_t) {
    step_ = step;
    copy(step + kAhead);
  }
  __device__ void store(unsigned char* tile) {
    const unsigned char* const raw = memory_ + step_ % kSlots * kPanels * kPanelBytes;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int panel = threadIdx.x / 64, run = threadIdx.x / kWarp % 2;
      const int lane = threadIdx.x % kWarp, quad = lane % 4;
      const unsigned char* from = raw + panel * kPanelBytes + unit * kUnitBytes;
      const uint4 codes = *reinterpret_cast<const uint4*>(from + run * 512 + lane * 16);
      const bool there = kUnits == 1 || step_ * kUnits + unit < units_;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = run * 16 + half * 8 + lane / 4;  // of the panel
        uint32_t w[4];
        if constexpr (Layout::kBits == 8) {
          expand(from, row, 0,
                 half == 0 ? make_uint2(codes.x, codes.y) : make_uint2(codes.z, codes.w), w);
          put(tile, panel * kTileRows + row, unit * 4 + quad, w, there);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            // Rows next to each other begin with different halves: their places differ in banks.
            const int chunk = (i + lane / 4) % 2;
            const uint32_t word =
                chunk == 0 ? (half == 0 ? codes.x : codes.y) : (half == 0 ? codes.z : codes.w);
            expand(from, row, chunk, make_uint2(word, 0), w);
            put(tile, panel * kTileRows + row, chunk * 4 + quad, w, there);
          }
        }
      }
    }
  }
  // What the sums of a row are to be multiplied by.
  __device__ float row_scale(int row) const {
    if constexpr (!kRowScale) return 1;
    const uint8_t* header = weights_ + row / kTileRows * panel_bytes_ + units_ * Layout::kUnitBytes;
    return 64 * __uint_as_float(read32_aligned(header + (row % 8 * 4 + row % kTileRows / 8) * 4));
  }

 private:
  __device__ void copy(int step) {
    const int first_unit = kHalfUnit ? step / 2 : step * kUnits;
    if (first_unit >= units_) return;
    const uint32_t to = shared_address(memory_ + step % kSlots * kPanels * kPanelBytes);
    const int bytes = min(kUnits, units_ - first_unit) * kUnitBytes;
#pragma unroll
    for (int i = 0; i < (kPanels * kPanelBytes / 16 + kTileThreads - 1) / kTileThreads; ++i) {
      const int item = threadIdx.x + i * kTileThreads;
      const int panel = item / (kPanelBytes / 16), at = item % (kPanelBytes / 16) * 16;
      if (panel >= panels_ || at >= bytes) continue;
      const uint8_t* from = weights_ + panel * panel_bytes_ + first_unit * Layout::kUnitBytes + at;
      if (kHalfUnit) from += at < kCodeBytes ? step % 2 * kCodeBytes : kCodeBytes;
      copy_async(to + panel * kPanelBytes + at, from, true);
    }
  }
  // chunk: of 32 columns, of the step.
  static __device__ void expand(const unsigned char* unit, int row, int chunk, uint2 codes,
                                uint32_t (&w)[4]) {
    if constexpr (kRowScale) {
      spread_bytes(codes.x, w[0], w[1]);
      spread_bytes(codes.y, w[2], w[3]);
    } else {
      const int place = row % 8 * 4 + row / 8;
      const unsigned char* group =
          unit + kCodeBytes + (Layout::kGroup == 32 ? chunk : 0) * Layout::kGroupBytes;
      typename TileRow<kFormat>::Raw raw{codes, 0, 0};
      if constexpr (Layout::kScaleBytes == 4) {
        raw.scale = reinterpret_cast<const uint32_t*>(group)[place];
      } else {
        raw.scale = reinterpret_cast<const uint16_t*>(group)[place];
      }
      if constexpr (Layout::kZeros) {
        raw.zero =
            reinterpret_cast<const uint16_t*>(group + kTileRows * Layout::kScaleBytes)[place];
      }
      TileRow<kFormat>::expand_pairs(raw, 0, 0, w);
    }
  }
  static __device__ void put(unsigned char* tile, int row, int piece, const uint32_t (&w)[4],
                             bool there) {
    *reinterpret_cast<uint4*>(tile + place(row, piece)) =
        there ? make_uint4(w[0], w[1], w[2], w[3]) : make_uint4(0, 0, 0, 0);
  }

  const uint8_t* weights_;
  int64_t panel_bytes_;
  int units_, panels_;
  unsigned char* memory_;
  int step_ = 0;
};

}  // namespace braid::cuda

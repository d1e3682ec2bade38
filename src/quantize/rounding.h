#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quant/quant_format.h"

namespace braid {

// The middle of int8 codes, which are kept from 1 to 255.
inline constexpr int kByteMiddle = 128;
// Scales that a search tries, relative to the one that lets the range fit.
inline constexpr float kLargestScaleFactor = 1.075f, kScaleFactorStep = 0.025f;
inline constexpr int kNumScaleFactors = 26;

// How a storage format rounds: w = scale · (code − zero) + min, with scale, zero and min for each
// group of columns.
struct RoundingGrid {
  enum class Zero : uint8_t {
    kMiddle,  // the same for all groups
    kChosen,  // one a group
    kMin,     // 0, and each group has its smallest value
  };

  const QuantFormat* format = nullptr;
  int64_t group = 128;     // columns; a multiple of the format's blocks
  int low = 0, high = 15;  // codes
  Zero zero = Zero::kMiddle;
  int middle = 8;      // kMiddle
  int least_zero = 0;  // kChosen
  FormatId scale_type = FormatId::kBF16;
  bool signed_scale = false;  // whether scales may be negative

  int64_t groups(int64_t cols) const { return (cols + group - 1) / group; }
};

// The grid of a w4 format, w8c, q8_0, q4_0 or q4_1 for rows of `cols`. per_row: one scale for the
// whole row, repeated in each of the format's blocks. Throws Error for other formats.
RoundingGrid rounding_grid(const QuantFormat& format, int64_t cols, bool per_row = false);

struct GroupScale {
  float scale = 0;
  float min = 0;
  int zero = 0;
};

// The scale of a group. Plainly (no importance, no search) it lets the group's range fit, as the
// reference quantisers do. `search`: the one of some smaller and larger ones that gives the least
// Σ importance · (w − q)²; importance (null: 1) ≥ 0.
GroupScale fit_group(const RoundingGrid& grid, const float* w, const float* importance,
                     int64_t count, bool search);

// As the format holds it.
float stored_scale(const RoundingGrid& grid, float scale);

// To nearest, ties to even.
int code_of(const RoundingGrid& grid, const GroupScale& scale, float w);
inline float value_of(const GroupScale& scale, int code) {
  return scale.scale * static_cast<float>(code - scale.zero) + scale.min;
}

// Rows of codes with their scales.
struct RoundedRows {
  int64_t rows = 0, cols = 0, groups = 0;
  std::vector<uint8_t> codes;      // [rows, cols]
  std::vector<GroupScale> scales;  // [rows, groups]

  RoundedRows() = default;
  RoundedRows(const RoundingGrid& grid, int64_t num_rows, int64_t num_cols)
      : rows(num_rows),
        cols(num_cols),
        groups(grid.groups(num_cols)),
        codes(static_cast<size_t>(num_rows * num_cols)),
        scales(static_cast<size_t>(num_rows * groups)) {}
};

// Rounds a row to nearest. importance: null, or one a column.
void round_row(const RoundingGrid& grid, const float* w, const float* importance, bool search,
               int64_t row, RoundedRows& rounded);
// A row in the grid's format; `out` has room for row_bytes(cols).
void pack_row(const RoundingGrid& grid, const RoundedRows& rounded, int64_t row, std::byte* out);
// What a stored row holds; the opposite.
void unpack_row(const RoundingGrid& grid, const std::byte* in, int64_t row, RoundedRows& rounded);

}  // namespace braid

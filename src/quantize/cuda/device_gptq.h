#pragma once

#include <cstdint>

#include "quantize/rounding.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid::cuda {

// The kernels of GPTQ on a CUDA device. All memory is the stream's device's; matrices are dense
// rows unless a stride is given. In a build without CUDA all of these throw Error.

// RoundingGrid, as kernels take it.
struct DeviceGrid {
  int64_t group = 0;
  int low = 0, high = 0;
  RoundingGrid::Zero zero = RoundingGrid::Zero::kMiddle;
  int middle = 0, least_zero = 0;
  FormatId scale_type = FormatId::kF32;
  bool signed_scale = false;
};
DeviceGrid device_grid(const RoundingGrid& grid);

// Rows that are being rounded.
struct DeviceRows {
  DeviceGrid grid;
  int64_t rows = 0, cols = 0, groups = 0;
  uint8_t* codes = nullptr;      // [rows, cols]
  GroupScale* scales = nullptr;  // [rows, groups]
};

// A float32 matrix as the sum of two in bfloat16, which leaves out less than 2^-16 of it.
struct SplitRows {
  uint16_t* high = nullptr;
  uint16_t* low = nullptr;
  int64_t stride = 0;
};

// Rows of bfloat16, float16 or float32, [rows, cols], as float32.
void expand(Stream& stream, FormatId type, const void* from, int64_t count, float* to);
void split(Stream& stream, const float* from, int64_t rows, int64_t cols, int64_t stride,
           const SplitRows& to);

// sums: [cols, cols]; the upper triangle becomes `factor` times as large, and the lower its mirror.
void finish_hessian(Stream& stream, float* sums, int64_t cols, float factor);
// out[i] = matrix[i, i], of n rows n apart.
void take_diagonal(Stream& stream, const float* matrix, int64_t n, float* out);

// l: [n, n], stride apart. Row i, column j <= i becomes h[order[n-1-i], order[n-1-j]], with `added`
// on the diagonal and 1 for a zero there; the rest zero.
void fill_reversed(Stream& stream, const float* h, const int32_t* order, int64_t n, double added,
                   double* l, int64_t stride);
// The lower triangle of a positive definite matrix A = L·Lᵀ becomes L⁻¹, above it zeros. scratch:
// inverse_scratch(n) doubles. Adds to *failures the blocks that are not positive definite (or not
// finite); then the result is not defined.
int64_t inverse_scratch(int64_t n);
void invert_factor(Stream& stream, double* a, int64_t n, int64_t stride, double* scratch,
                   int32_t* failures);
// u[i, j] = l[n-1-i, n-1-j] for j >= i, otherwise 0.
void take_upper(Stream& stream, const double* l, int64_t n, int64_t stride, float* u);

// Scales of all groups, fitted to w, [rows, cols]. importance: [cols], or null.
void fit_scales(Stream& stream, const DeviceRows& to, const float* w, const float* importance,
                bool search);
// Codes of w under the scales that are there.
void round_codes(Stream& stream, const DeviceRows& to, const float* w);

// out[r, i] = w[r, order[i]]
void permute_columns(Stream& stream, const float* w, const int32_t* order, int64_t rows,
                     int64_t cols, float* out);

// out[r, order[i]] = w[r, order[i]] + x[r, i]
void add_permuted(Stream& stream, const float* w, const float* x, const int32_t* order,
                  int64_t rows, int64_t cols, float* out);

// At most so many columns are rounded by one call.
inline constexpr int64_t kRoundedColumns = 128;

// GPTQ of columns [first, first + count) in the order of rounding; what each loses is spread over
// those that follow within them, and left behind in `losses` for the others.
struct ColumnBlock {
  int64_t first = 0, count = 0;
  const int32_t* order = nullptr;  // [cols]
  const float* factor = nullptr;   // [cols, cols], upper triangular
  float* left = nullptr;           // [rows, cols], weights in the order of rounding
  float* losses = nullptr;         // [rows, count], losses_stride apart
  int64_t losses_stride = 0;
  const float* importance = nullptr;  // [cols] in the order of rounding, if scales are to be fitted
                                      // as groups begin; otherwise null
  bool search = false;
};
void round_columns(Stream& stream, const DeviceRows& to, const ColumnBlock& block);

// out = w − values of the codes, [rows, cols].
void take_losses(Stream& stream, const DeviceRows& rows, const float* w, float* out);
// y = factor · x
void scale_to(Stream& stream, const float* x, int64_t count, float factor, float* y);
// out = factor · x − y
void subtract_scaled(Stream& stream, const float* x, const float* y, int64_t count, float factor,
                     float* out);
// c = codes less the zero of a group's columns, [rows, columns of the group], c_stride apart.
void take_centred(Stream& stream, const DeviceRows& rows, int64_t group, float* c,
                  int64_t c_stride);
// Takes the group's scale to its best for its codes, if that is better: S loses `added` times the
// change of values, and c becomes that change. products: c·H of the group's columns, [rows, columns
// of the group].
struct ScaleStep {
  int64_t group = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  const float* products = nullptr;
  float* slopes = nullptr;  // [rows, cols]
  float added = 0;
};
void step_scales(Stream& stream, const DeviceRows& rows, const ScaleStep& step);

// Takes codes of columns [first, first + count) to their best, one after the other; slopes of those
// that follow within them are kept up, and changes of values left for the others in `changes`,
// [rows, count], changes_stride apart. Adds to *num_changed how many.
struct CodeStep {
  int64_t first = 0, count = 0;
  const float* hessian = nullptr;  // [cols, cols]
  float added = 0;
  float* slopes = nullptr;  // [rows, cols]
  float* changes = nullptr;
  int64_t changes_stride = 0;
  int32_t* num_changed = nullptr;
};
void step_codes(Stream& stream, const DeviceRows& rows, const CodeStep& step);

// sums[r] = Σ x[r, c] · y[r, c]
void row_dots(Stream& stream, const float* x, const float* y, int64_t rows, int64_t cols,
              double* sums);

}  // namespace braid::cuda

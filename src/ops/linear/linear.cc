#include "ops/linear/linear.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/linear_kernels.h"
#include "quant/group_format.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

constexpr int64_t kTileRows = 32;    // a multiple of every instruction set's row tile, and panels
constexpr int64_t kTileTokens = 64;  // what kernels hold sums for
// Neighbouring rows worked on by one thread hide each other's cache misses; more of them would
// leave threads without work at the end.
constexpr int64_t kMaxItemRows = 256;
constexpr int64_t kItemsPerThread = 4;
// Of few tokens, where reading the weights is what takes the time: a stretch shorter than this is
// over before it has got going, a longer one would leave threads without work at the end.
constexpr int64_t kFewTokens = 16;
constexpr int64_t kMinItemBytes = 128 << 10;
constexpr int64_t kMaxItemBytes = 1 << 20;

void check_arguments(const Weight& w, const LinearInput& x, const TensorView& y) {
  BRAID_CHECK(!w.empty() && x.x.rank() == 2 && y.rank() == 2 && y.dtype() == DType::kF32);
  BRAID_CHECK(w.cols() == x.x.dim(1) && w.cols() % w.format->block_elements == 0,
              "weight {} of {}, x {}", to_string(w.shape), w.format->name, to_string(x.x.shape()));
  BRAID_CHECK(y.dim(0) == x.x.dim(0) && y.dim(1) == w.rows(), "weight {}, x {}, y {}",
              to_string(w.shape), to_string(x.x.shape()), to_string(y.shape()));
}

const LinearKernels& kernels_of(const QuantFormat& format) {
  if (format.plain()) return BRAID_KERNELS(kPlainKernels);
  if (format.has_row_header()) {
    return format.panels() ? BRAID_KERNELS(kChannelPanelKernels) : BRAID_KERNELS(kChannelKernels);
  }
  if (as_group_format(format)) {
    return format.panels() ? BRAID_KERNELS(kGroupPanelKernels) : BRAID_KERNELS(kGroupKernels);
  }
  const bool simple = format.block_elements == 32;
  if (format.panels()) {
    return simple ? BRAID_KERNELS(kSimplePanelKernels) : BRAID_KERNELS(kKPanelKernels);
  }
  return simple ? BRAID_KERNELS(kSimpleBlockKernels) : BRAID_KERNELS(kKQuantKernels);
}

// Whether the input was rounded with the scales that the format's kernels need.
bool has_codes(const LinearInput& x, const QuantFormat& format) {
  return !format.plain() && (format.has_row_header() ? x.token_codes : x.codes).rank() == 2;
}

// Products of `tokens` rows with a matrix of w's size, of which `weight_bytes` are read.
OpWork linear_work(const Weight& w, const LinearInput& x, int64_t tokens, double weight_bytes) {
  const bool int8 = x.precision == ActivationPrecision::kInt8 && has_codes(x, *w.format);
  const double cols = static_cast<double>(w.cols()), rows = static_cast<double>(w.rows());
  return {.weight_bytes = weight_bytes,
          .activation_bytes = static_cast<double>(tokens) * ((int8 ? 1.25 : 4) * cols + 4 * rows),
          .operations = 2 * static_cast<double>(tokens) * cols * rows,
          .arithmetic = int8                   ? Arithmetic::kInt8
                        : x.packed.rank() == 2 ? Arithmetic::kBF16
                                               : Arithmetic::kF32};
}

LinearKernel pick_kernel(const QuantFormat& format, const LinearInput& x) {
  const LinearKernels& kernels = kernels_of(format);
  const int id = static_cast<int>(format.id);
  LinearKernel kernel = nullptr;
  if (x.precision == ActivationPrecision::kInt8 && has_codes(x, format)) kernel = kernels.int8[id];
  if (x.precision == ActivationPrecision::kBF16 && x.packed.rank() == 2) {
    kernel = kernels.packed[id];
  }
  return kernel != nullptr ? kernel : kernels.f32[id];
}

LinearTask make_task(const Weight& w, const LinearInput& x, const TensorView& y) {
  LinearTask task{};
  task.weights = reinterpret_cast<const uint8_t*>(w.data);
  task.row_bytes = w.row_bytes();
  task.rows = w.rows();
  task.cols = w.cols();
  task.x = x.x.data<float>();
  task.x_stride = x.x.row_stride();
  if (x.packed.rank() == 2) {
    task.packed = x.packed.data<BFloat16>();
    task.packed_stride = x.packed.row_stride();
  }
  if (x.codes.rank() == 2) {
    task.codes = x.codes.data<int8_t>();
    task.scales = x.scales.data<float>();
    task.sums = x.sums.data<int32_t>();
  }
  if (x.token_codes.rank() == 2) {
    task.token_codes = x.token_packed.raw();
    task.token_scales = x.token_scales.data<float>();
  }
  task.y = y.data<float>();
  task.y_stride = y.row_stride();
  return task;
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of a work item if `tokens` rows are multiplied in `token_tiles`, each with all rows of a
// matrix.
int64_t item_rows(const ThreadPool& pool, const Weight& w, int64_t tokens, int64_t token_tiles) {
  const int64_t threads = pool.num_threads(), rows = w.rows();
  if (tokens <= kFewTokens * token_tiles) {
    const int64_t bytes = w.row_bytes() * rows * token_tiles / threads;
    const int64_t items = std::max(std::clamp<int64_t>(bytes / kMinItemBytes, 1, kItemsPerThread),
                                   ceil_divide(bytes, kMaxItemBytes));
    const int64_t share = ceil_divide(rows * token_tiles, items * threads);
    // An even part of a matrix.
    const int64_t parts = ceil_divide(rows, share);
    return ceil_divide(ceil_divide(rows, parts), kTileRows) * kTileRows;
  }
  // As many as leave each thread a few items.
  const int64_t share = rows * token_tiles / (kItemsPerThread * threads);
  return std::clamp(share / kTileRows * kTileRows, kTileRows, kMaxItemRows);
}

// Which tile of which expert is the i-th.
class ExpertTiles {
 public:
  explicit ExpertTiles(std::span<const int32_t> offsets)
      : offsets_(offsets), stride_(ceil_divide(num_experts(), kMarks)) {
    for (int64_t e = 0; e < num_experts(); ++e) {
      if (e % stride_ == 0) marks_[num_marks_++] = count_;
      count_ += tiles_of(e);
    }
  }

  int64_t count() const { return count_; }

  struct Tile {
    int64_t expert, token_begin, token_end;
  };
  Tile at(int64_t i) const {
    const int64_t mark = std::upper_bound(marks_, marks_ + num_marks_, i) - marks_ - 1;
    i -= marks_[mark];
    int64_t expert = mark * stride_;
    while (i >= tiles_of(expert)) i -= tiles_of(expert++);
    const int64_t begin = offsets_[expert] + i * kTileTokens;
    return {expert, begin, std::min<int64_t>(begin + kTileTokens, offsets_[expert + 1])};
  }

 private:
  int64_t num_experts() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t tiles_of(int64_t expert) const {
    return ceil_divide(offsets_[expert + 1] - offsets_[expert], kTileTokens);
  }

  static constexpr int64_t kMarks = 64;
  std::span<const int32_t> offsets_;
  int64_t stride_, count_ = 0, num_marks_ = 0;
  int64_t marks_[kMarks];  // tiles before every stride-th expert
};

// Rows that are a multiple of this many elements apart share their cache sets.
constexpr int64_t kBadStride = 256;

// A matrix in the workspace whose rows are an odd number of cache lines apart.
TensorView take_spread(Workspace& workspace, int64_t rows, int64_t cols) {
  constexpr int64_t kLine = 64 / sizeof(float);
  const int64_t lines = ceil_divide(cols, kLine);
  return workspace.take(DType::kF32, {rows, (lines | 1) * kLine}).columns(0, cols);
}

TensorView spread_rows(Stream& stream, Workspace& workspace, const TensorView& x) {
  const TensorView copy = take_spread(workspace, x.dim(0), x.dim(1));
  stream.pool().parallel_for(x.dim(0), 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(x.row<float>(t), x.dim(1), copy.row<float>(t));
    }
  });
  return copy;
}

// Sums of products of codes fit 32 bits up to this width, also with the bias of unsigned codes.
constexpr int64_t kMaxTokenCodes = 65536;

void add_token_codes(Stream& stream, Workspace& workspace, LinearInput& input) {
  const TokenInputKernels& kernels = BRAID_KERNELS(kTokenInputKernels);
  const int64_t tokens = input.x.dim(0), cols = input.x.dim(1);
  input.token_codes = workspace.take(DType::kI8, {tokens, cols});
  input.token_scales = workspace.take(DType::kF32, {tokens});
  input.token_packed = workspace.take(DType::kI8, {tokens, cols * kernels.packed_bytes});
  stream.pool().parallel_for(tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      kernels.quantize(input.x.row<float>(t), cols, input.token_codes.row<int8_t>(t),
                       input.token_packed.row<int8_t>(t), input.token_scales.data<float>() + t);
    }
  });
}

}  // namespace

LinearInput prepare_linear_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                 ActivationPrecision precision, Int8Scales int8_scales) {
  BRAID_CHECK(x.rank() == 2 && x.dtype() == DType::kF32);
  const int64_t tokens = x.dim(0), cols = x.dim(1);
  if (precision == ActivationPrecision::kInt8 && cols % 32 != 0) {
    warn_once("inputs whose width is not a multiple of 32 are not rounded to int8");
    precision = ActivationPrecision::kF32;
  }
  const OpScope op(stream, "prepare_input", [&] {
    const double elements = static_cast<double>(x.num_elements());
    return OpWork{
        .activation_bytes = elements * (precision == ActivationPrecision::kInt8 ? 5.25 : 8),
        .operations = 4 * elements};
  });
  if (!stream.is_cpu()) {
    return cuda::prepare_linear_input(stream, workspace, x, {precision, int8_scales});
  }
  LinearInput input;
  input.precision = precision;
  const bool spread =
      precision == ActivationPrecision::kF32 && tokens > 1 && x.row_stride() % kBadStride == 0;
  input.x = spread ? spread_rows(stream, workspace, x) : x;
  const InputKernels& kernels = BRAID_KERNELS(kInputKernels);
  if (precision == ActivationPrecision::kInt8 && int8_scales.per_token && cols <= kMaxTokenCodes) {
    add_token_codes(stream, workspace, input);
  }
  if (precision == ActivationPrecision::kInt8 && int8_scales.per_block) {
    input.codes = workspace.take(DType::kI8, {tokens, cols});
    input.scales = workspace.take(DType::kF32, {tokens, cols / 32});
    input.sums = workspace.take(DType::kI32, {tokens, cols / 16});
    stream.pool().parallel_for(tokens, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        kernels.quantize(x.row<float>(t), cols, input.codes.row<int8_t>(t),
                         input.scales.row<float>(t), input.sums.row<int32_t>(t));
      }
    });
  } else if (precision == ActivationPrecision::kBF16) {
    input.x = take_spread(workspace, tokens, cols);
    if (kernels.uses_packed) {
      input.packed = workspace.take(DType::kBF16, {tokens, cols + cols % 2});
    }
    stream.pool().parallel_for(tokens, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        kernels.round_to_bfloat16(x.row<float>(t), cols, input.x.row<float>(t),
                                  kernels.uses_packed ? input.packed.row<BFloat16>(t) : nullptr);
      }
    });
  }
  return input;
}

void linear(Stream& stream, const Weight& w, const LinearInput& x, const TensorView& y) {
  linear_in_front(stream, w, x, y, 0);
}

bool linear_in_front(Stream& stream, const Weight& w, const LinearInput& x, const TensorView& y,
                     int64_t next_bytes) {
  BRAID_CHECK(w.shape.rank() == 2);
  check_arguments(w, x, y);
  const int64_t tokens = y.dim(0), rows = w.rows();
  if (tokens == 0 || rows == 0) return true;
  const OpScope op(stream, "linear", w.format->name,
                   [&] { return linear_work(w, x, tokens, static_cast<double>(w.size_bytes())); });
  if (!stream.is_cpu()) return cuda::linear(stream, w, x, y, next_bytes);
  const LinearTask task = make_task(w, x, y);
  const LinearKernel kernel = pick_kernel(*w.format, x);
  const int64_t token_tiles = ceil_divide(tokens, kTileTokens);
  const int64_t rows_each = item_rows(stream.pool(), w, tokens, token_tiles);
  const int64_t row_tiles = ceil_divide(rows, rows_each);
  // Neighbouring items share their rows, which stay in cache.
  stream.pool().parallel_for(token_tiles * row_tiles, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / token_tiles * rows_each;
      const int64_t token = item % token_tiles * kTileTokens;
      kernel(task,
             {row, std::min(row + rows_each, rows), token, std::min(token + kTileTokens, tokens)});
    }
  });
  return true;
}

void grouped_linear(Stream& stream, const Weight& w, const LinearInput& x, const IndexList& groups,
                    const TensorView& y) {
  BRAID_CHECK(w.shape.rank() == 3);
  check_arguments(w, x, y);
  const int64_t experts = w.shape.dim(0), rows = w.rows(), tokens = y.dim(0);
  BRAID_CHECK(groups.size() == experts + 1, "{} offsets for {} experts", groups.size(), experts);
  if (tokens == 0 || rows == 0) return;
  if (!stream.is_cpu()) {
    // How many experts got tokens is not known here.
    const OpScope op(stream, "grouped_linear", w.format->name, [&] {
      return linear_work(w, x, tokens,
                         expected_experts(tokens, experts) * static_cast<double>(w.matrix_bytes()));
    });
    return cuda::grouped_linear(stream, w, x, groups, y);
  }
  const std::span<const int32_t> offsets = groups.on_host();
  BRAID_CHECK(offsets.front() == 0 && offsets.back() == tokens &&
                  std::is_sorted(offsets.begin(), offsets.end()),
              "offsets of {} experts", experts);
  const int64_t expert_bytes = w.matrix_bytes();
  const OpScope op(stream, "grouped_linear", w.format->name, [&] {
    int64_t touched = 0;
    for (int64_t e = 0; e < experts; ++e) touched += offsets[e + 1] > offsets[e] ? 1 : 0;
    return linear_work(w, x, tokens, static_cast<double>(touched * expert_bytes));
  });
  const LinearTask task = make_task(w, x, y);
  const LinearKernel kernel = pick_kernel(*w.format, x);
  const ExpertTiles tiles(offsets);
  const int64_t rows_each = item_rows(stream.pool(), w, tokens, tiles.count());
  const int64_t row_tiles = ceil_divide(rows, rows_each);
  stream.pool().parallel_for(tiles.count() * row_tiles, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const ExpertTiles::Tile tile = tiles.at(item / row_tiles);
      LinearTask expert_task = task;
      expert_task.weights += tile.expert * expert_bytes;
      const int64_t row = item % row_tiles * rows_each;
      kernel(expert_task, {row, std::min(row + rows_each, rows), tile.token_begin, tile.token_end});
    }
  });
}

}  // namespace braid

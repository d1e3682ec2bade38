#include "checkpoint/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "quant/deferred_weight.h"
#include "quant/group_format.h"
#include "quant/panels.h"
#include "tensor/cuda/copy_pieces.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/dtype.h"

namespace braid {
namespace {

// Large enough that a row of a real model holds no repetition, small enough for the L2 cache.
constexpr int64_t kPoolElements = 1 << 16;
constexpr int64_t kPoolRows = 64;  // at least, where rows are copied whole
// From this size threads share the work.
constexpr size_t kParallelBytes = size_t{8} << 20;
constexpr float kVectorSpread = 0.1f;

// SplitMix64 (Steele, Lea and Flood, 2014).
class Random {
 public:
  Random(uint64_t seed, std::string_view name) : state_(seed) {
    for (const char c : name) {
      state_ ^= static_cast<unsigned char>(c);
      next();
    }
  }
  uint64_t next() { return mix(state_ += kStep); }
  // The number that n + 1 calls of next() from now would end with.
  uint64_t at(uint64_t n) const { return mix(state_ + (n + 1) * kStep); }
  // Nearly normal, of mean 0 and variance 1: the sum of four uniform values.
  float normal() {
    const uint64_t bits = next();
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>((bits >> (16 * i)) & 0xffff);
    constexpr float kSumDeviation = 65536 * 0.57735027f;  // sqrt(4 / 12)
    return static_cast<float>(sum - 2 * 65535) / kSumDeviation;
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

const QuantFormat& fitting_format(const QuantFormat& format, int64_t cols) {
  if (cols % format.block_elements == 0) return format;
  FormatId smaller = FormatId::kF16;
  switch (format.id) {
    case FormatId::kQ2K:
    case FormatId::kQ3K:
      smaller = FormatId::kQ4_0;
      break;
    case FormatId::kQ4K:
      smaller = FormatId::kQ5_0;
      break;
    case FormatId::kQ5K:
      smaller = FormatId::kQ5_1;
      break;
    case FormatId::kQ6K:
      smaller = FormatId::kQ8_0;
      break;
    case FormatId::kW8C:
      smaller = FormatId::kBF16;
      break;
    default:
      if (auto groups = as_group_format(format)) {
        groups->group /= 2;
        const QuantFormat* halved = find_group_format(*groups);
        return fitting_format(halved != nullptr ? *halved : quant_format(FormatId::kBF16), cols);
      }
      break;
  }
  return fitting_format(quant_format(smaller), cols);
}

// Where a k-quant block keeps its float16 scale and the scale of its minima, and the ratio of the
// two that centres random blocks: a minimum is worth the mean of the quants above it.
struct BlockScales {
  int scale_offset;
  int min_offset;  // -1: none
  float min_ratio;
};

BlockScales block_scales(FormatId id) {
  switch (id) {
    case FormatId::kQ2K:
      return {80, 82, 1.5f};
    case FormatId::kQ3K:
      return {108, -1, 0};
    case FormatId::kQ4K:
      return {0, 2, 7.5f};
    case FormatId::kQ5K:
      return {0, 2, 15.5f};
    case FormatId::kQ6K:
      return {208, -1, 0};
    default:
      BRAID_CHECK(false, "format {}", static_cast<int>(id));
      return {};
  }
}

void set_scales(const QuantFormat& format, float scale, std::vector<std::byte>& blocks) {
  const BlockScales where = block_scales(format.id);
  const Float16 scale_bits = to_float16(scale);
  const Float16 min_bits = to_float16(scale * where.min_ratio);
  for (size_t block = 0; block < blocks.size(); block += static_cast<size_t>(format.block_bytes)) {
    std::memcpy(&blocks[block + where.scale_offset], &scale_bits, sizeof(scale_bits));
    if (where.min_offset < 0) continue;
    std::memcpy(&blocks[block + where.min_offset], &min_bits, sizeof(min_bits));
  }
}

// Rows of values of deviation `deviation`, in a format whose rows have headers.
std::vector<std::byte> make_row_pool(const QuantFormat& format, int64_t rows, int64_t cols,
                                     float deviation, Random& random) {
  const int64_t row_bytes = format.row_bytes(cols);
  std::vector<std::byte> pool(static_cast<size_t>(rows * row_bytes));
  std::vector<float> values(static_cast<size_t>(cols));
  for (int64_t row = 0; row < rows; ++row) {
    for (float& value : values) value = deviation * random.normal();
    quantize(format, values.data(), cols, pool.data() + row * row_bytes);
  }
  return pool;
}

// Blocks of values of deviation `deviation`.
std::vector<std::byte> make_pool(const QuantFormat& format, int64_t elements, float deviation,
                                 Random& random) {
  std::vector<std::byte> pool(static_cast<size_t>(format.row_bytes(elements)));
  std::vector<float> values(static_cast<size_t>(elements));
  if (can_quantize(format)) {
    for (float& value : values) value = deviation * random.normal();
    quantize(format, values.data(), elements, pool.data());
    return pool;
  }
  for (std::byte& byte : pool) byte = static_cast<std::byte>(random.next() >> 56);
  set_scales(format, 1, pool);
  dequantize(format, pool.data(), elements, values.data());
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  set_scales(format, deviation / static_cast<float>(std::sqrt(squares / elements)), pool);
  return pool;
}

// The rows of a weight, one after the other: pieces of a pool of blocks, each begun at a random
// block. Piece i takes random number i, whoever asks for it.
class Pieces {
 public:
  Pieces(const std::vector<std::byte>& pool, size_t block_bytes, const Random& random,
         size_t total_bytes)
      : pool_(pool), random_(random), block_bytes_(block_bytes), total_bytes_(total_bytes) {
    pool_blocks_ = pool.size() / block_bytes;
    piece_blocks_ = total_bytes <= pool.size() ? pool_blocks_ : (pool_blocks_ + 1) / 2;
  }

  // Bytes [begin, begin + count) of the rows.
  void copy(size_t begin, size_t count, std::byte* to) const {
    while (count > 0) {
      const size_t skipped = begin % piece_bytes();
      const size_t bytes = std::min(count, piece_bytes() - skipped);
      std::memcpy(to, pool_.data() + start(begin / piece_bytes()) + skipped, bytes);
      begin += bytes;
      to += bytes;
      count -= bytes;
    }
  }
  // All of them, into memory of a CUDA device.
  void copy_all(std::byte* to, Device device) const {
    std::vector<int64_t> starts((total_bytes_ + piece_bytes() - 1) / piece_bytes());
    for (size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<int64_t>(start(i));
    const Buffer pool(pool_.size(), device);
    cuda::copy_to_device(pool.data(), pool_.data(), pool_.size(), device.index);
    cuda::copy_pieces(to, total_bytes_, pool.data(), starts, piece_bytes(), device.index);
  }

 private:
  size_t piece_bytes() const { return piece_blocks_ * block_bytes_; }
  // Of a piece in the pool, bytes.
  size_t start(size_t piece) const {
    return random_.at(piece) % (pool_blocks_ - piece_blocks_ + 1) * block_bytes_;
  }

  const std::vector<std::byte>& pool_;
  const Random& random_;
  size_t block_bytes_, total_bytes_, pool_blocks_, piece_blocks_;
};

// parallel_for over `total` items of `item_bytes`. Most of the time goes to the pages of fresh
// memory: a thread gets whole huge ones.
void for_ranges(int64_t total, size_t item_bytes,
                const std::function<void(int64_t begin, int64_t end)>& body) {
  if (static_cast<size_t>(total) * item_bytes < kParallelBytes) return body(0, total);
  ThreadPool threads;
  const auto at_once = static_cast<int64_t>(kParallelBytes / 2 / item_bytes);
  threads.parallel_for(total, std::max<int64_t>(1, at_once),
                       [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

void fill_rows(const Pieces& pieces, int64_t rows, size_t row_bytes, std::byte* to) {
  for_ranges(rows, row_bytes, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<size_t>(begin) * row_bytes;
    pieces.copy(first, static_cast<size_t>(end - begin) * row_bytes, to + first);
  });
}

void fill_panels(const Pieces& pieces, const Weight& weight, std::byte* to) {
  const QuantFormat& rows_format = quant_format(weight.format->id);
  const auto row_bytes = static_cast<size_t>(weight.row_bytes());
  const size_t panel_bytes = kPanelRows * row_bytes;
  const int64_t panels_each = weight.matrix_bytes() / static_cast<int64_t>(panel_bytes);
  const int64_t matrices = weight.size_bytes() / weight.matrix_bytes();
  for_ranges(matrices * panels_each, panel_bytes, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> rows(panel_bytes);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t in_matrix = panel % panels_each * kPanelRows;
      const int64_t count = std::min<int64_t>(kPanelRows, weight.rows() - in_matrix);
      const int64_t first = panel / panels_each * weight.rows() + in_matrix;
      pieces.copy(static_cast<size_t>(first) * row_bytes, static_cast<size_t>(count) * row_bytes,
                  rows.data());
      pack_panels(rows_format, rows.data(), count, weight.cols(),
                  to + static_cast<size_t>(panel) * panel_bytes);
    }
  });
}

class DummyPayload : public PayloadMaker {
 public:
  // Of a matrix or stack of matrices.
  DummyPayload(uint64_t seed, std::string_view name, const QuantFormat& format, const Shape& shape)
      : random_(seed, name), weight_{.format = &format, .shape = shape} {}

  void make(std::byte* to, Device device) const override {
    const QuantFormat& rows_format = quant_format(weight_.format->id);
    const int64_t elements = weight_.shape.num_elements(), cols = weight_.cols();
    const int64_t rows = elements / cols;
    const float deviation = 1 / std::sqrt(static_cast<float>(cols));
    const auto row_bytes = static_cast<size_t>(rows_format.row_bytes(cols));
    // Of whole rows if these have headers, else of blocks.
    const bool whole_rows = rows_format.has_row_header();
    const int64_t pool_rows = std::min(std::max(kPoolElements / cols, kPoolRows), rows);
    const int64_t pool_elements =
        std::min(elements, kPoolElements) / rows_format.block_elements * rows_format.block_elements;
    Random random = random_;
    const std::vector<std::byte> pool =
        whole_rows ? make_row_pool(rows_format, pool_rows, cols, deviation, random)
                   : make_pool(rows_format, pool_elements, deviation, random);
    const Pieces pieces(pool, whole_rows ? row_bytes : static_cast<size_t>(rows_format.block_bytes),
                        random, static_cast<size_t>(rows) * row_bytes);
    if (!device.is_cpu()) {
      BRAID_CHECK(!weight_.format->panels(), "panels are for the CPU");
      pieces.copy_all(to, device);
    } else if (weight_.format->panels()) {
      fill_panels(pieces, weight_, to);
    } else {
      fill_rows(pieces, rows, row_bytes, to);
    }
  }

 private:
  Random random_;
  Weight weight_;
};

}  // namespace

Weight make_dummy_weight(uint64_t seed, std::string_view name, const Shape& shape,
                         const QuantFormat& format, bool fill) {
  BRAID_CHECK(shape.rank() > 0 && shape.num_elements() > 0, "tensor {}: shape {}", name,
              to_string(shape));
  if (shape.rank() == 1) {
    auto vector = std::make_shared<Tensor>(make_dummy_f32(seed, name, shape));
    return {&quant_format(FormatId::kF32), shape,
            static_cast<const std::byte*>(vector->view().raw()), vector};
  }
  const QuantFormat& fitting = fitting_format(quant_format(format.id), shape.dim(-1));
  Weight weight{.format = &fitting, .shape = shape};
  if (format.panels() && !fitting.plain()) weight.format = panel_format(fitting);
  auto payload = std::make_shared<const DummyPayload>(seed, name, *weight.format, shape);
  if (!fill) return defer_weight(*weight.format, shape, std::move(payload));
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
  payload->make(buffer->data(), Device{});
  weight.data = buffer->data();
  weight.owner = buffer;
  return weight;
}

Tensor make_dummy_f32(uint64_t seed, std::string_view name, const Shape& shape) {
  Tensor tensor(DType::kF32, shape);
  Random random(seed, name);
  const bool is_vector = shape.rank() <= 1;
  const float centre = is_vector ? 1 : 0;
  const float spread = is_vector ? kVectorSpread : 1 / std::sqrt(static_cast<float>(shape.dim(-1)));
  for (float& value : tensor.view().span<float>()) value = centre + spread * random.normal();
  return tensor;
}

}  // namespace braid

#include "checkpoint/integer_matrix.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/thread_pool.h"
#include "quant/channel_format.h"
#include "quant/group_format.h"
#include "tensor/buffer.h"

namespace braid {
namespace {

constexpr int64_t kRowsAtOnce = 16;
// From this size threads share the work.
constexpr int64_t kParallelElements = int64_t{1} << 22;

// Whether blocks of `size` columns lie within groups.
bool blocks_fit(const IntegerMatrix& matrix, int64_t size) {
  const auto cols = static_cast<int64_t>(matrix.group_of.size());
  if (cols % size != 0) return false;
  for (int64_t begin = 0; begin < cols; begin += size) {
    const auto first = matrix.group_of.begin() + begin;
    if (!std::all_of(first, first + size, [&](int32_t group) { return group == *first; })) {
      return false;
    }
  }
  return true;
}

void write_row(const IntegerMatrix& matrix, const QuantFormat& format, const uint8_t* codes,
               const float* scales, const int* zeros, std::byte* out) {
  const int64_t cols = matrix.shape.dim(-1);
  if (as_group_format(format)) {
    for (int64_t c = 0; c < cols; c += format.block_elements, out += format.block_bytes) {
      const int32_t group = matrix.group_of[c];
      write_group(format, {.scale = scales[group], .zero = zeros[group]}, codes + c, out);
    }
  } else if (format.id == FormatId::kW8C) {
    std::vector<int8_t> values(static_cast<size_t>(cols));
    for (int64_t c = 0; c < cols; ++c) values[c] = static_cast<int8_t>(codes[c] - 128);
    write_channel_row(scales[0], values.data(), cols, out);
  } else {
    BRAID_CHECK(format.id == FormatId::kF32, "{}", format.name);
    for (int64_t c = 0; c < cols; ++c) {
      const int32_t group = matrix.group_of[c];
      const float value = scales[group] * static_cast<float>(codes[c] - zeros[group]);
      std::memcpy(out + 4 * c, &value, sizeof(value));
    }
  }
}

}  // namespace

const QuantFormat& exact_format(const IntegerMatrix& matrix) {
  if (matrix.bits == 4) {
    for (const int group : {128, 64, 32}) {
      if (!blocks_fit(matrix, group)) continue;
      return *find_group_format(
          {.group = group, .asymmetric = !matrix.symmetric, .f32_scales = !matrix.bf16_scales});
    }
  }
  if (matrix.bits == 8 && matrix.symmetric && matrix.groups == 1 &&
      matrix.shape.dim(-1) % quant_format(FormatId::kW8C).block_elements == 0) {
    return quant_format(FormatId::kW8C);
  }
  return quant_format(FormatId::kF32);
}

Weight to_weight(const IntegerMatrix& matrix, const QuantFormat& format) {
  Weight weight{.format = &format, .shape = matrix.shape};
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
  std::byte* const data = buffer->data();
  const int64_t cols = weight.cols(), row_bytes = weight.row_bytes();
  const int64_t rows = matrix.shape.num_elements() / cols;
  const auto convert = [&](int64_t begin, int64_t end, int) {
    IntegerMatrix::Rows buffers;
    for (int64_t first = begin; first < end; first += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, end - first);
      buffers.codes.resize(static_cast<size_t>(count * cols));
      buffers.scales.resize(static_cast<size_t>(count * matrix.groups));
      buffers.zeros.resize(static_cast<size_t>(count * matrix.groups));
      matrix.read(first, count, buffers);
      for (int64_t i = 0; i < count; ++i) {
        write_row(matrix, format, buffers.codes.data() + i * cols,
                  buffers.scales.data() + i * matrix.groups,
                  buffers.zeros.data() + i * matrix.groups, data + (first + i) * row_bytes);
      }
    }
  };
  if (rows * cols < kParallelElements) {
    convert(0, rows, 0);
  } else {
    ThreadPool threads;
    threads.parallel_for(rows, 4 * kRowsAtOnce, convert);
  }
  weight.data = data;
  weight.owner = buffer;
  return weight;
}

}  // namespace braid

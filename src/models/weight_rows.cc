#include "models/weight_rows.h"

#include <algorithm>
#include <cstring>

#include "quant/deferred_weight.h"
#include "quant/panels.h"
#include "tensor/buffer.h"
#include "tensor/cuda/copy_pieces.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

Weight allocate(const QuantFormat& format, const Shape& shape, std::byte*& payload) {
  Weight weight{.format = &format, .shape = shape};
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
  payload = buffer->data();
  weight.data = payload;
  weight.owner = buffer;
  return weight;
}

// Rows of a matrix that is not there yet.
class SelectedRows : public PayloadMaker {
 public:
  SelectedRows(const Weight& matrix, std::shared_ptr<const PayloadMaker> maker,
               std::span<const RowRange> ranges)
      : format_(*matrix.format),
        shape_(matrix.shape),
        maker_(std::move(maker)),
        ranges_(ranges.begin(), ranges.end()) {}

  void make(std::byte* to, Device device) const override {
    Weight matrix{.format = &format_, .shape = shape_};
    const auto whole = std::make_shared<Buffer>(static_cast<size_t>(matrix.size_bytes()), device);
    maker_->make(whole->data(), device);
    if (device.is_cpu()) {
      matrix.data = whole->data();
      matrix.owner = whole;
      const Weight rows = select_rows(matrix, ranges_);
      std::memcpy(to, rows.data, static_cast<size_t>(rows.size_bytes()));
      return;
    }
    BRAID_CHECK(!format_.panels(), "panels are for the CPU");
    std::vector<int64_t> starts;
    for (const RowRange& range : ranges_) {
      for (int64_t i = 0; i < range.count; ++i) {
        starts.push_back((range.begin + i) * matrix.row_bytes());
      }
    }
    const auto row_bytes = static_cast<size_t>(matrix.row_bytes());
    cuda::copy_pieces(to, starts.size() * row_bytes, whole->data(), starts, row_bytes,
                      device.index);
  }

 private:
  const QuantFormat& format_;
  Shape shape_;
  std::shared_ptr<const PayloadMaker> maker_;
  std::vector<RowRange> ranges_;
};

// Matrices one behind the other, not all of which are there yet.
class StackedMatrices : public PayloadMaker {
 public:
  explicit StackedMatrices(std::span<const Weight> matrices)
      : matrices_(matrices.begin(), matrices.end()) {}

  void make(std::byte* to, Device device) const override {
    for (const Weight& matrix : matrices_) {
      const auto bytes = static_cast<size_t>(matrix.size_bytes());
      if (const auto maker = payload_maker(matrix)) {
        maker->make(to, device);
      } else if (device.is_cpu()) {
        std::memcpy(to, matrix.data, bytes);
      } else {
        cuda::copy_to_device(to, matrix.data, bytes, device.index);
      }
      to += bytes;
    }
  }

 private:
  std::vector<Weight> matrices_;
};

}  // namespace

Weight select_rows(const Weight& matrix, std::span<const RowRange> ranges) {
  BRAID_CHECK(matrix.shape.rank() == 2, "shape {}", to_string(matrix.shape));
  int64_t rows = 0;
  for (const RowRange& range : ranges) {
    BRAID_CHECK(range.begin >= 0 && range.begin + range.count <= matrix.rows(),
                "rows [{}, {}) of {}", range.begin, range.begin + range.count, matrix.rows());
    rows += range.count;
  }
  const bool whole_panels = std::all_of(ranges.begin(), ranges.end(), [&](const RowRange& range) {
    return range.begin % matrix.format->panel_rows == 0 &&
           range.count % matrix.format->panel_rows == 0;
  });
  const QuantFormat& format = whole_panels ? *matrix.format : quant_format(matrix.format->id);
  if (const auto maker = payload_maker(matrix)) {
    return defer_weight(format, {rows, matrix.cols()},
                        std::make_shared<SelectedRows>(matrix, maker, ranges));
  }
  std::byte* to = nullptr;
  const Weight result = allocate(format, {rows, matrix.cols()}, to);
  for (const RowRange& range : ranges) {
    const auto bytes = static_cast<size_t>(range.count * matrix.row_bytes());
    if (whole_panels) {
      std::memcpy(to, matrix.row(range.begin), bytes);
    } else {
      for (int64_t i = 0; i < range.count; ++i) {
        copy_row(matrix, range.begin + i, to + i * matrix.row_bytes());
      }
    }
    to += bytes;
  }
  return result;
}

Weight stack_matrices(std::span<const Weight> matrices) {
  BRAID_CHECK(!matrices.empty(), "nothing to stack");
  const Weight& first = matrices.front();
  const Shape shape{static_cast<int64_t>(matrices.size()), first.rows(), first.cols()};
  bool all_there = true;
  for (const Weight& matrix : matrices) {
    BRAID_CHECK(matrix.format == first.format && matrix.shape == first.shape, "{} {} beside {} {}",
                matrix.format->name, to_string(matrix.shape), first.format->name,
                to_string(first.shape));
    all_there = all_there && payload_maker(matrix) == nullptr;
  }
  if (!all_there) {
    return defer_weight(*first.format, shape, std::make_shared<StackedMatrices>(matrices));
  }
  std::byte* to = nullptr;
  const Weight result = allocate(*first.format, shape, to);
  for (const Weight& matrix : matrices) {
    const auto bytes = static_cast<size_t>(matrix.size_bytes());
    std::memcpy(to, matrix.data, bytes);
    to += bytes;
  }
  return result;
}

}  // namespace braid

#include "speculative/rounded_head.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "tensor/buffer.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

constexpr int64_t kChunkRows = 4096;  // brought from a device at a time

bool is_rounded(const Weight& head) {
  return head.format->plain() && head.cols() % quant_format(FormatId::kQ4_0).block_elements == 0;
}

// Rows [begin, begin + count), in the host's memory: `memory` holds them if the weight's own does
// not.
const std::byte* rows_on_host(const Weight& head, int64_t begin, int64_t count,
                              std::vector<std::byte>& memory) {
  const std::byte* rows = head.row(begin);
  if (head.device.is_cpu()) return rows;
  memory.resize(static_cast<size_t>(count * head.row_bytes()));
  cuda::copy_to_host(memory.data(), rows, memory.size(), head.device.index);
  return memory.data();
}

}  // namespace

PlacementCount RoundedHead::count(const Weight& head, Device device) {
  if (!is_rounded(head)) return {};
  const QuantFormat& format = quant_format(FormatId::kQ4_0);
  if (device.is_cpu()) return {.bytes = head.rows() * format.row_bytes(head.cols())};
  Placement counting = Placement::counting(device);
  Weight rounded{.format = &format, .shape = head.shape, .data = head.data};
  counting.place(rounded);
  return counting.counted();
}

RoundedHead::RoundedHead(Stream& stream, const Weight& head) : weight_(head) {
  if (!is_rounded(head)) return;
  const QuantFormat& format = quant_format(FormatId::kQ4_0);
  const int64_t rows = head.rows(), cols = head.cols();
  const auto storage =
      std::make_shared<Buffer>(static_cast<size_t>(rows * format.row_bytes(cols)), Device{});
  std::vector<std::byte> memory;
  for (int64_t first = 0; first < rows; first += kChunkRows) {
    const int64_t count = std::min(kChunkRows, rows - first);
    const std::byte* chunk = rows_on_host(head, first, count, memory);
    stream.pool().parallel_for(count, 64, [&](int64_t begin, int64_t end, int) {
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        dequantize(*head.format, chunk + r * head.row_bytes(), cols, row.data());
        quantize(format, row.data(), cols, storage->data() + (first + r) * format.row_bytes(cols));
      }
    });
  }
  weight_ = {.format = &format, .shape = head.shape, .data = storage->data(), .owner = storage};
  if (!stream.is_cpu()) Placement(stream.device()).place(weight_);
}

TensorView RoundedHead::logits(Stream& stream, Workspace& workspace,
                               const TensorView& hidden) const {
  const TensorView out = workspace.take(DType::kF32, {hidden.dim(0), weight_.rows()});
  const auto precision = stream.is_cpu() ? ActivationPrecision::kInt8 : ActivationPrecision::kBF16;
  linear(stream, weight_, prepare_linear_input(stream, workspace, hidden, precision), out);
  return out;
}

}  // namespace braid

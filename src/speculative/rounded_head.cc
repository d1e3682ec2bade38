#include "speculative/rounded_head.h"

#include <memory>
#include <vector>

#include "tensor/buffer.h"

namespace braid {

RoundedHead::RoundedHead(Stream& stream, const Weight& head) : weight_(head) {
  const QuantFormat& format = quant_format(FormatId::kQ4_0);
  const int64_t rows = head.rows(), cols = head.cols();
  if (!head.format->plain() || cols % format.block_elements != 0) return;
  const auto storage =
      std::make_shared<Buffer>(static_cast<size_t>(rows * format.row_bytes(cols)), Device{});
  stream.pool().parallel_for(rows, 64, [&](int64_t begin, int64_t end, int) {
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      dequantize(*head.format, head.row(r), cols, row.data());
      quantize(format, row.data(), cols, storage->data() + r * format.row_bytes(cols));
    }
  });
  weight_ = {.format = &format, .shape = head.shape, .data = storage->data(), .owner = storage};
}

TensorView RoundedHead::logits(Stream& stream, Workspace& workspace,
                               const TensorView& hidden) const {
  const TensorView out = workspace.take(DType::kF32, {hidden.dim(0), weight_.rows()});
  linear(stream, weight_,
         prepare_linear_input(stream, workspace, hidden, ActivationPrecision::kInt8), out);
  return out;
}

}  // namespace braid

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/fused/cuda/token_inputs.h"
#include "ops/linear/cuda/int8_products.h"
#include "ops/linear/cuda/product_paths.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {
namespace {

constexpr int64_t kWidthMultiple = 32;

bool fits(Stream& stream, const GatedMlpCall& call, bool beside) {
  const int64_t width = call.down->cols();
  const auto reads = [&](const Weight& w) { return w.empty() || reads_token_codes(w, *call.x); };
  const bool rounds = call.out.dtype() == DType::kBF16;
  return (!rounds || (call.down->rows() % 16 == 0 && call.out.row_stride() % 4 == 0)) &&
         reads(*call.gate) && reads(*call.up) && reads(*call.down) && width % kWidthMultiple == 0 &&
         width <= kMostTokenCodes && has_int8_products(stream) &&
         gated_path(stream, call, beside) == ProductPath::kTiles;
}

void run(Stream& stream, Workspace& workspace, const GatedMlpCall& call) {
  const int64_t width = call.down->cols(), rows = call.out.dim(0);
  const auto of = [&](const Weight& w, const LinearInput& x, const TensorView& y) {
    Int8Products products = int8_products_of(w, x);
    if (y.dtype() == DType::kBF16) {
      products.rounded = static_cast<uint16_t*>(y.raw());
    } else {
      products.y = y.data<float>();
    }
    products.y_stride = y.row_stride();
    products.tokens = static_cast<int>(rows);
    if (call.groups == nullptr) return products;
    products.experts = static_cast<int>(w.shape.dim(0));
    products.offsets = call.groups->offsets.data<int32_t>();
    return products;
  };
  const TensorView activated = workspace.take(DType::kF32, {rows, width});
  Int8Products gate = of(*call.gate, *call.x, activated);
  gate.rows = static_cast<int>(width);
  gate.up = call.up->empty() ? gate.weights + width / kWidthMultiple * gate.panel_bytes
                             : reinterpret_cast<const uint8_t*>(call.up->data);
  gate.activation = call.activation;
  if (call.groups != nullptr) gate.x_rows = call.groups->tokens.data<int32_t>();
  int8_products(stream, gate);
  const LinearInput input = plain_token_codes(stream, workspace, activated, false);
  int8_products(stream, of(*call.down, input, call.out));
}

}  // namespace

bool int8_mlps(Stream& stream, Workspace& workspace, std::span<const GatedMlpCall> calls) {
  const auto fit = [&](const GatedMlpCall& call) {
    return fits(stream, call, call.groups == nullptr && calls.size() > 1);
  };
  if (!std::all_of(calls.begin(), calls.end(), fit)) return false;
  for (const GatedMlpCall& call : calls) run(stream, workspace, call);
  stream.cuda().finish_op("gated_mlps");
  return true;
}

}  // namespace braid::cuda

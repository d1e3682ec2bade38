#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/fused/cuda/token_inputs.h"
#include "ops/linear/cuda/int8_stream.h"
#include "quant/device_tiles.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {
namespace {

// A row of activations gets its codes at once, which takes room for all of its columns.
constexpr int kMostWidth = 2048, kWidthMultiple = 32;

bool fits(Stream& stream, const GatedMlpCall& call) {
  const int64_t width = call.down->cols(), rows = call.out.dim(0);
  const auto reads = [&](const Weight& w) { return w.empty() || reads_token_codes(w, *call.x); };
  return has_int8_products(stream) && reads(*call.gate) && reads(*call.up) && reads(*call.down) &&
         call.out.dtype() == DType::kF32 && width % kWidthMultiple == 0 && width <= kMostWidth &&
         rows <= (call.groups == nullptr ? kMostCodeTokens
                                         : kMostCodesPerExpert * call.gate->shape.dim(0));
}

}  // namespace

bool stream_int8_mlps(Stream& stream, Workspace& workspace, std::span<const GatedMlpCall> calls) {
  const int num_calls = static_cast<int>(calls.size());
  StreamPlan plan = code_plan(0);  // tiles of eight: experts have few, and making codes takes time
  int row_warps = 4;
  for (const GatedMlpCall& call : calls) {
    if (!fits(stream, call)) return false;
    row_warps = std::min(row_warps, code_row_warps(static_cast<int>(call.down->cols())));
    if (call.groups == nullptr) {
      plan.tokens = static_cast<int>(call.out.dim(0));
      continue;
    }
    plan.pairs = static_cast<int>(call.out.dim(0));
    plan.experts = static_cast<int>(call.gate->shape.dim(0));
    plan.offsets = call.groups->offsets.data<int32_t>();
  }
  plan.num_phases = 2 * num_calls;
  plan.num_counters = 1;  // the first one counts blocks
  for (int i = 0; i < num_calls; ++i) {
    const GatedMlpCall& call = calls[i];
    const bool routed = call.groups != nullptr;
    const int64_t rows = call.out.dim(0), width = call.down->cols();
    const TensorView activated = workspace.take(DType::kF32, {rows, width});
    const TensorView scales = workspace.take(DType::kF32, {rows});

    Int8Products products = int8_products_of(*call.gate, *call.x);
    products.rows = static_cast<int>(width);
    products.up = call.up->empty() ? products.weights + width / kTileRows * products.panel_bytes
                                   : reinterpret_cast<const uint8_t*>(call.up->data);
    products.activation = call.activation;
    products.experts = routed ? plan.experts : 0;
    products.x_rows = routed ? call.groups->tokens.data<int32_t>() : nullptr;
    products.y = activated.data<float>();
    products.y_stride = activated.row_stride();
    StreamPhase& first = plan.phases[i];
    first = code_phase(plan, products, std::max(row_warps, 2));
    first.early = call.early;
    first.counts = plan.num_counters;
    plan.num_counters += plan.most_tiles(routed) * stream_counters(static_cast<int>(width));

    LinearInput input;
    input.x = activated;
    input.token_packed = call.x->token_packed;
    input.token_scales = scales;
    products = int8_products_of(*call.down, input);
    products.codes = nullptr;
    products.experts = routed ? plan.experts : 0;
    products.y = call.out.data<float>();
    products.y_stride = call.out.row_stride();
    StreamPhase& second = plan.phases[num_calls + i];
    second = code_phase(plan, products, row_warps);
    make_inputs_of(second, first, scales.data<float>());
  }
  if (plan.num_counters > StreamState::kNumCounters) return false;
  plan.counters = stream.cuda().counters();
  stream_codes(stream, plan);
  stream.cuda().finish_op("gated_mlps");
  return true;
}

}  // namespace braid::cuda

#include <bit>
#include <cstring>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/linear/cuda/product_paths.h"
#include "ops/linear/cuda/weight_stream.h"

namespace braid::cuda {
namespace {

constexpr int kWidthMultiple = 64;

int experts_of(const GatedMlpCall& call) {
  return call.groups == nullptr ? 0 : static_cast<int>(call.gate->shape.dim(0));
}

// On a deterministic stream for any number of tokens, since that must not decide the order of sums.
bool fits(Stream& stream, const GatedMlpCall& call, bool beside) {
  const int width = static_cast<int>(call.down->cols());
  const auto streams = [&](const Weight& w) {
    if (w.empty()) return true;
    Products products = products_of(w, *call.x);
    if (&w == call.down) products.packed_stride = width;  // of inputs yet to come
    return w.format == call.gate->format && can_stream(stream, products);
  };
  return call.x->packed.rank() == 2 && width % kWidthMultiple == 0 &&
         width <= kMostCountedColumns && streams(*call.gate) && streams(*call.up) &&
         streams(*call.down) &&
         (stream.cuda().deterministic() ||
          gated_path(stream, call, beside) == ProductPath::kStream);
}

// As a table of the step, one for each size: the layers share it, and each kernel leaves zeros.
int32_t* many_counters(Stream& stream, int count) {
  static const char keys[32] = {};
  const size_t bytes = sizeof(int32_t) * std::bit_ceil(static_cast<unsigned>(count));
  const auto clear = [&](std::byte* out) { std::memset(out, 0, bytes); };
  return static_cast<int32_t*>(
      const_cast<void*>(stream.cuda().table(&keys[std::bit_width(bytes) % 32], bytes, clear)));
}

}  // namespace

bool gated_mlps(Stream& stream, Workspace& workspace, std::span<const GatedMlpCall> calls) {
  StreamPlan plan = stream_plan(products_of(*calls[0].gate, *calls[0].x));
  const GatedMlpCall& last = calls.back();
  for (const GatedMlpCall& call : calls) {
    const bool beside = calls.size() > 1 && call.groups == nullptr;
    if (!fits(stream, call, beside) || call.gate->format != calls[0].gate->format) return false;
    const int rows = static_cast<int>(call.out.dim(0)), experts = experts_of(call);
    if (experts > 0) {
      plan.pairs = rows;
      plan.experts = experts;
      plan.offsets = call.groups->offsets.data<int32_t>();
      const Router& router = call.groups->router;
      if (!router.logits.empty()) {
        plan.few = few_choices(router, rows / static_cast<int>(router.logits.dim(0)));
      }
    } else {
      plan.tokens = rows;
    }
    // A block beside experts that is as small as one of them takes little time with any tiles.
    const bool small =
        plan.tiles && beside && last.groups != nullptr && call.down->cols() <= last.down->cols();
    if (small) continue;
    plan.token_tiles = std::max(plan.token_tiles, stream_token_tiles(plan, rows, experts));
  }
  if (plan.few.logits != nullptr && plan.token_tiles > 1) return false;
  plan.num_counters = 1;  // the first one counts blocks
  const int num_calls = static_cast<int>(calls.size());
  plan.num_phases = 2 * num_calls;
  for (int i = 0; i < num_calls; ++i) {
    const GatedMlpCall& call = calls[i];
    const bool routed = call.groups != nullptr;
    const int width = static_cast<int>(call.down->cols());
    const PackedRows activated(workspace, call.out.dim(0), width);

    Products products = products_of(*call.gate, *call.x);
    products.experts = experts_of(call);
    products.rows = width;
    // Many short units where there are many matrices; enough of them where there is one.
    const int row_warps_of_experts = plan.tiles ? 4 : 8;
    StreamPhase& first = plan.phases[i];
    first = stream_phase(
        plan, products,
        routed ? row_warps_of_experts : stream_row_warps(stream, products, 2 * width, true), true);
    const bool joined = call.up->empty();
    Products up = products_of(joined ? *call.gate : *call.up, *call.x);
    up.experts = products.experts;
    set_up_rows(plan, first, up, joined ? width : 0);
    first.activation = call.activation;
    BRAID_CHECK(!call.early || !stream.cuda().next_begins_ahead(), "input of a block");
    first.early = call.early;
    first.x_rows = routed ? call.groups->tokens.data<int32_t>() : nullptr;
    first.packed = activated.rows().data;
    first.out_stride = activated.rows().stride;
    first.counts = plan.num_counters;
    plan.num_counters += plan.most_tiles(routed) * stream_counters(width);

    products = products_of(*call.down, activated.input(call.out));
    products.experts = experts_of(call);
    StreamPhase& second = plan.phases[num_calls + i];
    second = stream_phase(
        plan, products,
        routed ? row_warps_of_experts : stream_row_warps(stream, products, products.rows, false),
        false);
    second.y = call.out.data<float>();
    second.out_stride = call.out.row_stride();
    second.awaits = first.counts;
    second.awaited_unit_rows = first.unit_rows;
  }
  if (plan.num_counters <= StreamState::kNumCounters) {
    plan.counters = stream.cuda().counters();
  } else if (stream.cuda().deterministic()) {
    plan.counters = many_counters(stream, plan.num_counters);
  } else {
    return false;
  }
  stream_weights(stream, plan);
  stream.cuda().finish_op("gated_mlps");
  return true;
}

}  // namespace braid::cuda

#include "ops/fused/gated_mlps.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/cuda/product_paths.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

int64_t width_of(const GatedMlpCall& call) { return call.down->cols(); }

void check_call(const GatedMlpCall& call) {
  const int64_t hidden = call.down->rows(), width = width_of(call);
  const int64_t gate_rows = call.up->empty() ? 2 * width : width;
  BRAID_CHECK(call.gate->cols() == hidden && call.gate->rows() == gate_rows &&
                  (call.up->empty() || call.up->shape == call.gate->shape),
              "gate {}, up {}, down {}", to_string(call.gate->shape), to_string(call.up->shape),
              to_string(call.down->shape));
  const int64_t rows = call.groups == nullptr ? call.x->x.dim(0) : call.groups->tokens.dim(0);
  BRAID_CHECK(call.x->x.dim(1) == hidden && call.out.dim(0) == rows && call.out.dim(1) == hidden,
              "x {}, out {} of {} rows", to_string(call.x->x.shape()), to_string(call.out.shape()),
              rows);
}

// Whether results may be bfloat16.
bool can_round(Stream& stream, std::span<const GatedMlpCall> calls) {
  const GatedMlpCall& last = calls.back();
  if (last.groups == nullptr || stream.cuda().deterministic()) return false;
  if (last.x->token_codes.rank() == 2) {
    return last.out.dim(0) > cuda::kFewTokensPerExpert * last.gate->shape.dim(0);
  }
  return cuda::gated_path(stream, last, false) == cuda::ProductPath::kWide;
}

// How many experts got tokens is not known here.
OpWork work_of(std::span<const GatedMlpCall> calls) {
  OpWork work{.arithmetic = Arithmetic::kBF16};
  for (const GatedMlpCall& call : calls) {
    const bool routed = call.groups != nullptr;
    const auto rows = static_cast<double>(call.out.dim(0));
    const auto hidden = static_cast<double>(call.down->rows());
    const auto width = static_cast<double>(width_of(call));
    const int64_t experts = routed ? call.down->shape.dim(0) : 1;
    const double share =
        routed ? expected_experts(call.out.dim(0), experts) / static_cast<double>(experts) : 1;
    const int64_t bytes = call.gate->size_bytes() + call.down->size_bytes() +
                          (call.up->empty() ? 0 : call.up->size_bytes());
    work.weight_bytes += share * static_cast<double>(bytes);
    work.activation_bytes += rows * (6 * hidden + 4 * width);
    work.operations += 6 * rows * hidden * width;
  }
  return work;
}

}  // namespace

bool gated_mlps(Stream& stream, Workspace& workspace, std::span<const GatedMlpCall> calls) {
  BRAID_CHECK(calls.size() <= 2, "{} calls", calls.size());
  if (stream.is_cpu()) return false;
  for (const GatedMlpCall& call : calls) {
    check_call(call);
    if (call.out.empty()) return false;
  }
  const bool rounds = calls.back().out.dtype() == DType::kBF16;
  const bool codes = calls[0].x->token_codes.rank() == 2;
  if (rounds && (!can_round(stream, calls) || (!codes && calls.size() > 1))) return false;
  const ExpertGroups* groups = calls.back().groups;
  if ((rounds || codes) && groups != nullptr && !groups->router.logits.empty()) return false;
  const OpScope op(stream, "gated_mlps", calls[0].gate->format->name,
                   [&] { return work_of(calls); });
  if (codes) return cuda::int8_mlps(stream, workspace, calls);
  return rounds ? cuda::wide_gated_mlp(stream, workspace, calls[0])
                : cuda::gated_mlps(stream, workspace, calls);
}

}  // namespace braid

#include "ops/fused/delta_step.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

void check_call(const DeltaStepCall& call, const RecurrentLayer& layer) {
  const int64_t tokens = call.raw.dim(0);
  const int64_t channels = 2 * call.key_heads * call.key_dim + call.value_heads * call.value_dim;
  BRAID_CHECK((call.raw.shape() == Shape{tokens, channels} && call.conv.rank() == 2 &&
               call.conv.dim(0) == channels &&
               call.z.shape() == Shape{tokens, call.value_heads * call.value_dim}),
              "raw {}, conv {}, z {} of {} × {} keys and {} × {} values",
              to_string(call.raw.shape()), to_string(call.conv.shape()), to_string(call.z.shape()),
              call.key_heads, call.key_dim, call.value_heads, call.value_dim);
  BRAID_CHECK(call.x.x.dim(0) == tokens && call.b_weight.rows() == call.value_heads &&
                  call.a_weight.rows() == call.value_heads &&
                  call.rate.num_elements() == call.value_heads &&
                  call.dt_bias.num_elements() == call.value_heads &&
                  call.norm.num_elements() == call.value_dim,
              "x {}, {} value heads", to_string(call.x.x.shape()), call.value_heads);
  BRAID_CHECK(layer.states.dim(1) == call.value_heads && layer.states.dim(2) == call.value_dim &&
                  layer.states.dim(3) == call.key_dim,
              "states {}", to_string(layer.states.shape()));
}

OpWork work_of(const DeltaStepCall& call) {
  const auto tokens = static_cast<double>(call.raw.dim(0));
  const auto state = static_cast<double>(call.value_heads * call.value_dim * call.key_dim);
  const auto values = static_cast<double>(call.value_heads * call.value_dim);
  return {
      .weight_bytes = static_cast<double>(call.b_weight.size_bytes() + call.a_weight.size_bytes()),
      .state_bytes = tokens * 8 * state,
      .activation_bytes = tokens * (4 * static_cast<double>(call.raw.dim(1)) + 6 * values),
      .operations = 8 * tokens * state};
}

}  // namespace

std::optional<LinearInput> delta_step(Stream& stream, Workspace& workspace,
                                      const DeltaStepCall& call, const RecurrentLayer& layer,
                                      std::span<const RecurrentRows> sequences) {
  const bool single =
      std::all_of(sequences.begin(), sequences.end(),
                  [](const RecurrentRows& rows) { return rows.num_rows == 1 && !rows.logged; });
  if (stream.is_cpu() || !single || sequences.empty()) return std::nullopt;
  check_call(call, layer);
  if (!cuda::can_delta_step(stream, call, layer, sequences)) return std::nullopt;
  const OpScope op(stream, "delta_step", [&] { return work_of(call); });
  return cuda::delta_step(stream, workspace, call, layer, sequences);
}

}  // namespace braid

#include "ops/fused/attend_heads.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

OpWork work_of(const AttendHeadsCall& call) {
  double keys = 0;
  for (const SequenceRows& s : call.sequences) {
    const int64_t length = s.first_position + s.num_rows;
    const int64_t window = call.attention.window;
    keys += static_cast<double>(window > 0 ? std::min(window, length) : length);
  }
  const auto width = static_cast<double>(call.q.dim(1) * call.q.dim(2));
  const auto kv_width = static_cast<double>(call.cache.num_kv_heads() * call.cache.head_dim());
  return {.weight_bytes = 2 * keys * kv_width * dtype_bytes(call.cache.keys.dtype()),
          .activation_bytes = 6 * static_cast<double>(call.q.num_elements()),
          .operations = 4 * keys * width,
          .arithmetic = Arithmetic::kBF16};
}

}  // namespace

std::optional<LinearInput> attend_heads(Stream& stream, Workspace& workspace,
                                        const AttendHeadsCall& call, bool rounded) {
  BRAID_CHECK(call.q.rank() == 3 && call.q.dim(2) == call.cache.head_dim() &&
                  call.q.dim(1) % call.cache.num_kv_heads() == 0 &&
                  (call.k.empty() || (call.k.rank() == 3 && call.k.shape() == call.v.shape())),
              "q {}, k {}, v {}", to_string(call.q.shape()), to_string(call.k.shape()),
              to_string(call.v.shape()));
  const auto single = [](const SequenceRows& s) { return s.num_rows == 1; };
  const bool singles = std::all_of(call.sequences.begin(), call.sequences.end(), single);
  if (stream.is_cpu() || call.q.empty()) return std::nullopt;
  // Single tokens are then computed as those of prompts are.
  const bool as_prompts = !singles || stream.cuda().deterministic();
  if (as_prompts && !rounded) return std::nullopt;
  const OpScope op(stream, "attend_heads", dtype_name(call.cache.keys.dtype()),
                   [&] { return work_of(call); });
  return as_prompts ? cuda::attend_prompts(stream, workspace, call)
                    : cuda::attend_heads(stream, workspace, call, rounded);
}

}  // namespace braid

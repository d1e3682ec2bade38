#include "base/check.h"
#include "ops/attention/cuda/attention_call.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/row_vectors.cuh"
#include "ops/fused/cuda/packed_rows.cuh"

namespace braid::cuda {

void attention(Stream& stream, Workspace& workspace, const TensorView& q, const PagedKv& cache,
               std::span<const SequenceRows> sequences, const AttentionOptions& options,
               const TensorView& out) {
  if (!sequences.empty() && !q.empty()) {
    const AttentionCall call{.stream = stream,
                             .workspace = workspace,
                             .q = q,
                             .cache = cache,
                             .sequences = sequences,
                             .options = options,
                             .out = out,
                             .table = KvTable::upload(stream.cuda(), sequences)};
    if (!tiles_fit(cache)) {
      exact_attention(call);
    } else if (stream.cuda().deterministic()) {
      span_attention(call);
    } else {
      tile_attention(call);
    }
  }
  stream.cuda().finish_op("attention");
}

std::optional<LinearInput> attend_prompts(Stream& stream, Workspace& workspace,
                                          const AttendHeadsCall& call) {
  const HeadOptions& heads = call.heads;
  const int64_t pairs = heads.cos.dim(1), dim = call.q.dim(2);
  // Both elements of a pair are in one lane.
  const bool turns = dim >= 256 && 2 * heads.pair_distance == dim && pairs % 4 == 0 &&
                     heads.cos.row_stride() == heads.sin.row_stride() &&
                     rows_are_aligned(heads.cos, heads.sin);
  if (!tiles_fit(call.cache) || !turns || !rows_are_aligned(call.q) || heads.q_norm.empty()) {
    return std::nullopt;
  }
  if (!call.k.empty() && !prepare_heads(stream, call.q, call.k, call.v, heads, call.sequences,
                                        call.cache, /*queries=*/false)) {
    return std::nullopt;
  }
  const int64_t tokens = call.q.dim(0), width = call.q.dim(1) * dim;
  // The widths of such heads need no zeros behind them.
  const PackedRows packed(workspace, tokens, width);
  BRAID_CHECK(packed.padded == width, "heads of {}", dim);
  const Workspace::Scope scope(workspace);
  const TensorView none;
  const AttentionCall attention{.stream = stream,
                                .workspace = workspace,
                                .q = call.q,
                                .cache = call.cache,
                                .sequences = call.sequences,
                                .options = call.attention,
                                .out = none,
                                .table = KvTable::upload(stream.cuda(), call.sequences),
                                .heads = {.norm = heads.q_norm.data<float>(),
                                          .epsilon = heads.epsilon,
                                          .cos = heads.cos.data<float>(),
                                          .sin = heads.sin.data<float>(),
                                          .stride = heads.cos.row_stride(),
                                          .pairs = static_cast<int>(pairs)},
                                .packed = packed.rows().data};
  if (stream.cuda().deterministic()) {
    span_attention(attention);
  } else {
    tile_attention(attention);
  }
  stream.cuda().finish_op("attend_prompts");
  return packed.input(call.q.reshape({tokens, width}));
}

}  // namespace braid::cuda

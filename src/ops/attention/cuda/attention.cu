#include "ops/attention/cuda/attention_call.h"
#include "ops/cuda/cuda_ops.h"

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
    if (tiles_fit(cache) && !stream.cuda().deterministic()) {
      tile_attention(call);
    } else {
      exact_attention(call);
    }
  }
  stream.cuda().finish_op("attention");
}

}  // namespace braid::cuda

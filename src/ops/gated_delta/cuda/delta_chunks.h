#pragma once

#include "ops/gated_delta/cuda/delta_rows.cuh"
#include "tensor/stream.h"

namespace braid::cuda {

// The gated delta rule in chunks of 64 tokens on the tensor cores (see gated_delta.h), for
// sequences of which takes_chunks() says so: what is multiplied is rounded to bfloat16, sums,
// decays and the state are float32.
bool delta_chunks_can(const DeltaArguments& args, bool aligned);
void delta_chunks(Stream& stream, const DeltaArguments& args, int num_sequences);

// Not rows that are logged, nor after such ones.
template <typename Sequence>
__host__ __device__ bool takes_chunks(const Sequence& rows) {
  return rows.num_rows >= kMinDeltaChunkRows && !rows.logged && rows.num_replayed == 0;
}

}  // namespace braid::cuda

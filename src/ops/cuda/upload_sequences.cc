#include "ops/attention/cuda/kv_table.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/gated_delta/cuda/recurrent_table.h"

namespace braid::cuda {

int upload_sequences(Stream& stream, std::span<const SequenceRows> sequences) {
  return sequences.empty() ? 0 : KvTable::upload(stream.cuda(), sequences).page_capacity;
}

void upload_sequences(Stream& stream, std::span<const RecurrentRows> sequences) {
  if (!sequences.empty()) recurrent_table(stream.cuda(), sequences);
}

}  // namespace braid::cuda

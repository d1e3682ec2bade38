#pragma once

#include "ops/attention/cuda/attention_call.h"

namespace braid::cuda {

// Query n of a sequence and KV head is row n / group, head n % group of the KV head's group.
struct QueryTile {
  int32_t sequence;
  int32_t first_query;
};

// Attention of tiles of up to kPromptQueries queries of a KV head, with bfloat16 keys and values of
// heads of 256, on the tensor cores of Hopper.
inline constexpr int kPromptQueries = 128;
bool prompt_attention_can(const AttentionCall& call);
// tiles: in device memory, in the order in which they are begun.
void prompt_attention(const AttentionCall& call, const QueryTile* tiles, int num_tiles);

}  // namespace braid::cuda

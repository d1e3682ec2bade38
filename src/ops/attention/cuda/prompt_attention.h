#pragma once

#include "ops/attention/cuda/query_tiles.h"

namespace braid::cuda {

// Attention of tiles of up to kPromptQueries queries of a KV head, with bfloat16 keys and values of
// heads of 256, on the tensor cores of Hopper.
inline constexpr int kPromptQueries = 128;
bool prompt_attention_can(const AttentionCall& call);
// tiles: in device memory, in the order in which they are begun.
void prompt_attention(const AttentionCall& call, const QueryTile* tiles, int num_tiles);

}  // namespace braid::cuda

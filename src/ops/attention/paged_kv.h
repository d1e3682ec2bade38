#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor_view.h"

namespace braid {

// One layer's share of a paged store. keys, values: [pages, kv_heads, page_tokens, head_dim],
// float32 or bfloat16. A page id means the same page in every layer of a group.
struct PagedKv {
  TensorView keys;
  TensorView values;

  int64_t num_kv_heads() const { return keys.dim(1); }
  int64_t page_tokens() const { return keys.dim(2); }
  int64_t head_dim() const { return keys.dim(3); }
};

// The rows of a flat batch that belong to one sequence, and where its keys and values are. The
// token at position p lives in pages[(p / page_tokens) % pages.size()], slot p % page_tokens: a
// list that covers the whole length is a plain page table, a shorter one a ring.
struct SequenceRows {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_position = 0;  // of the first row; the others follow one by one
  std::span<const int32_t> pages;
};

}  // namespace braid

#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor_view.h"

namespace braid {

// One layer's share of a paged store. keys, values: [pages, kv_heads, page_tokens, head_dim],
// float32, bfloat16 or int8. A page id means the same page in every layer of a group.
//
// int8: a key or value x of one token and head is stored as round(x_d · 127 / a), a = max |x_d|,
// and the scale a / 127; it stands for code · scale. If an x_d is not finite, the scale is NaN and
// so is everything computed from it; if a < 2^-100, codes and scale are 0. Otherwise each element
// is off by at most e = a / 254 · (1 + 2^-15): half a step, and 127 steps of three roundings.
//
// What that does to attention, exact arithmetic otherwise: a score s·q·k is off by at most
// δ = max over keys of s·Σ|q_d|·e(k), a weight by a factor between exp(−2δ) and exp(2δ), hence an
// element of the result by at most (exp(2δ) − 1)·Σ_j p_j·|v_j| + exp(2δ)·Σ_j p_j·e(v_j).
struct PagedKv {
  TensorView keys;
  TensorView values;
  // int8 only: [pages, kv_heads, page_tokens] float32; empty otherwise.
  TensorView key_scales;
  TensorView value_scales;

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

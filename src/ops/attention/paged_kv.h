#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor_view.h"

namespace braid {

// Of a layer's int8 keys and values, from calibration. 0: each token and head gets its own.
struct KvScales {
  float key = 0;
  float value = 0;
  bool operator==(const KvScales&) const = default;
};

// Scales that keys and values can be stored with lie between these.
inline constexpr float kSmallestKvScale = 0x1p-100f;
inline constexpr float kLargestKvScale = 0x1p100f;

// One layer's share of a paged store. keys, values: [pages, kv_heads, page_tokens, head_dim],
// float32, bfloat16 or int8. A page id means the same page in every layer of a group.
//
// int8: a key or value x of one token and head is stored as round(x_d · 127 / a), a = max |x_d|,
// and the scale a / 127; it stands for code · scale. If an x_d is not finite, the scale is NaN and
// so is everything computed from it; if a < 2^-100, codes and scale are 0. Otherwise each element
// is off by at most e = a / 254 · (1 + 2^-14): half a step, and 127 steps of three roundings.
//
// int8 with static scales: each element x is stored as x / s, rounded to the nearest integer (ties
// to even) and clamped to ±127, s the layer's scale for keys or values; the scale of each token and
// head is s, or NaN if an element of its is not finite. An element is off by at most
// e = max(s / 2 · (1 + 2^-15), |x| − 127·s): half a step and two roundings (x / s is computed as x
// times 1 / s), or what is beyond the range.
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
  KvScales static_scales = {};  // int8 only: with what write_kv() writes

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

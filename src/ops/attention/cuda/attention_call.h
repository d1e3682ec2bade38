#pragma once

#include <span>

#include "ops/attention/attention.h"
#include "ops/attention/cuda/kv_table.h"

namespace braid::cuda {

// How queries that are as projected become what meets the keys: a norm, and a turn of pairs of
// elements that are half a head apart. norm null: they are that already.
struct QueryHeads {
  const float* norm = nullptr;
  float epsilon = 0;
  const float* cos = nullptr;  // [tokens, pairs]
  const float* sin = nullptr;
  int64_t stride = 0;  // of both
  int pairs = 0;
};

struct AttentionCall {
  Stream& stream;
  Workspace& workspace;
  const TensorView& q;
  const PagedKv& cache;
  std::span<const SequenceRows> sequences;
  const AttentionOptions& options;
  const TensorView& out;
  KvTable table;
  // By tile_attention() and span_attention() alone:
  QueryHeads heads = {};
  uint16_t* packed = nullptr;  // bfloat16 results [tokens, heads · head_dim], instead of `out`

  int kv_heads() const { return static_cast<int>(cache.num_kv_heads()); }
  int group() const { return static_cast<int>(q.dim(1) / cache.num_kv_heads()); }
  int head_dim() const { return static_cast<int>(cache.head_dim()); }
};

// In float32 throughout, for stores of any type and heads of any size up to 1024. A row's result
// does not depend on its chunk nor on its batch mates, to the bit.
void exact_attention(const AttentionCall& call);

// Of bfloat16 and int8 stores with heads of 64, 128, 256 or 512: products of queries and keys, and
// of weights and values, on the tensor cores, with queries and weights (int8: times the values'
// scales) rounded to bfloat16 and sums in float32. Rows of sequences with few of them share the
// reading of their keys by all heads of a KV head, and split their keys among blocks; how is a
// matter of the sequence's own length.
bool tiles_fit(const PagedKv& cache);
void tile_attention(const AttentionCall& call);

// The same products, for the same stores. Keys are cut into spans at fixed positions (KeySpans),
// each is computed for itself, and the results are added up in the order of the spans: a row's
// result does not depend on its chunk nor on its batch mates, to the bit.
void span_attention(const AttentionCall& call);

}  // namespace braid::cuda

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cache/cache_layout.h"
#include "tensor/dtype.h"

namespace braid {

// How much a cache may hold. Any set of at most max_sequences sequences, each of at most
// max_sequence_tokens and together of at most max_tokens tokens, finds room.
struct CacheOptions {
  int64_t page_tokens = 32;      // a power of two from 8 to 256
  DType kv_dtype = DType::kF32;  // float32, bfloat16 or int8 (ops/attention/paged_kv.h)
  // int8: a scale for each token and head, even if the model comes with scales for its layers.
  bool dynamic_kv_scales = false;
  int64_t max_tokens = 0;
  int64_t max_sequences = 1;
  int64_t max_sequence_tokens = 0;  // longest sequence; 0: max_tokens
  int64_t max_step_tokens = 512;    // most tokens one sequence may have reserved at a time
  // Layouts with recurrent layers: most tokens of a step that may be taken back (drafts and the
  // token before them). 0: none can.
  int64_t max_logged_tokens = 0;
};

// Layers with equal declarations. A page id means the same page in each of them.
struct CacheGroup {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;           // tokens remembered; 0: all
  std::vector<int64_t> layers;  // those that write, ascending

  int64_t num_pages = 0;               // in the store
  int64_t max_pages_per_sequence = 0;  // of a full group: page table of the longest sequence;
                                       // of a window group: the ring
  int64_t bytes_per_token = 0;         // keys and values, all layers; scales included
  int64_t page_bytes = 0;
  int64_t size_bytes = 0;  // address space; memory is taken page by page on first use

  bool is_full() const { return window == 0; }
};

// Recurrent layers with equal declarations. A slot number means the same sequence in each of them.
struct RecurrentGroup {
  RecurrentState shape;
  std::vector<int64_t> layers;  // ascending

  int64_t num_slots = 0;
  int64_t slot_bytes = 0;  // all layers, the log included
  int64_t size_bytes = 0;  // address space; memory is taken slot by slot on first use
};

// What a layout needs under given options: pure arithmetic, nothing is allocated.
//
// A window group keeps a ring of pages for window - 1 + max_step_tokens tokens, plus one page: rows
// that are written but not committed never replace a row that the next committed token can see,
// and a page that is being written never holds such a row. No ring is longer than the page table
// of the longest sequence, and no window group has more pages than a full group would.
struct CachePlan {
  CacheOptions options;  // with max_sequence_tokens resolved
  std::vector<CacheGroup> groups;
  std::vector<RecurrentGroup> recurrent_groups;

  struct Layer {
    int group = -1;      // -1: no keys and values
    int64_t owner = -1;  // the layer whose keys and values it reads: itself, or its donor
    int recurrent_group = -1;
  };
  std::vector<Layer> layers;

  // Sums over the full and over the window groups.
  int64_t full_bytes_per_token() const;
  int64_t window_bytes_per_token() const;
  // What the recurrent layers of one sequence take, however long it is.
  int64_t recurrent_bytes_per_sequence() const;
  // Memory that one sequence of `num_tokens` tokens holds between steps.
  int64_t sequence_bytes(int64_t num_tokens) const;
  int64_t size_bytes() const;
};

// Throws Error naming the option that cannot be used. A layout whose layer shares with one that
// does not come before it, or has no keys and values of its own, is a bug of the model.
CachePlan plan_cache(const CacheLayout& layout, const CacheOptions& options);

// Pages of a group that a sequence of `num_tokens` tokens holds.
int64_t pages_for_tokens(const CacheGroup& group, int64_t page_tokens, int64_t num_tokens);

}  // namespace braid

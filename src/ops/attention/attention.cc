#include "ops/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_plan.h"
#include "ops/cpu/split.h"
#include "ops/cuda/cuda_ops.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

void check_cache(const PagedKv& cache) {
  BRAID_CHECK(cache.keys.rank() == 4 && cache.keys.shape() == cache.values.shape() &&
                  cache.keys.dtype() == cache.values.dtype(),
              "keys {}, values {}", to_string(cache.keys.shape()), to_string(cache.values.shape()));
  const DType dtype = cache.keys.dtype();
  BRAID_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kI8,
              "keys and values of type {}", dtype_name(dtype));
  if (dtype == DType::kI8) {
    const Shape scales{cache.keys.dim(0), cache.num_kv_heads(), cache.page_tokens()};
    BRAID_CHECK(cache.key_scales.shape() == scales && cache.value_scales.shape() == scales &&
                    cache.key_scales.dtype() == DType::kF32 &&
                    cache.value_scales.dtype() == DType::kF32,
                "scales {} and {} for keys {}", to_string(cache.key_scales.shape()),
                to_string(cache.value_scales.shape()), to_string(cache.keys.shape()));
  }
  const KvScales& fixed = cache.static_scales;
  const auto usable = [](float s) { return s >= kSmallestKvScale && s <= kLargestKvScale; };
  BRAID_CHECK(
      fixed == KvScales{} || (dtype == DType::kI8 && usable(fixed.key) && usable(fixed.value)),
      "static scales {} and {} of {} keys and values", fixed.key, fixed.value, dtype_name(dtype));
  BRAID_CHECK(
      cache.page_tokens() >= 8 && std::has_single_bit(static_cast<uint64_t>(cache.page_tokens())),
      "pages of {} tokens", cache.page_tokens());
  BRAID_CHECK(cache.head_dim() > 0 && cache.head_dim() % 8 == 0, "heads of {}", cache.head_dim());
}

// window 0: all tokens up to the last row's must be there.
void check_sequence(const SequenceRows& sequence, const PagedKv& cache, int64_t num_tokens,
                    int64_t needed_tokens) {
  BRAID_CHECK(sequence.first_row >= 0 && sequence.num_rows >= 0 &&
                  sequence.first_row + sequence.num_rows <= num_tokens,
              "rows [{}, {}) of {}", sequence.first_row, sequence.first_row + sequence.num_rows,
              num_tokens);
  if (sequence.num_rows == 0) return;
  BRAID_CHECK(sequence.first_position >= 0, "position {}", sequence.first_position);
  const int64_t room = static_cast<int64_t>(sequence.pages.size()) * cache.page_tokens();
  BRAID_CHECK(room >= needed_tokens, "{} pages of {} tokens hold {} tokens, {} are needed",
              sequence.pages.size(), cache.page_tokens(), room, needed_tokens);
  for (const int32_t page : sequence.pages) {
    BRAID_CHECK(page >= 0 && page < cache.keys.dim(0), "page {} of {}", page, cache.keys.dim(0));
  }
}

// One of a store's tensors, as one KV head of one sequence sees it: by position.
class HeadRows {
 public:
  // view: [pages, kv_heads, page_tokens, …]; empty: there are no rows.
  HeadRows(const TensorView& view, const SequenceRows& sequence, int64_t kv_head)
      : pages_(sequence.pages) {
    if (view.rank() < 3) return;
    const int64_t page_tokens = view.dim(2);
    page_shift_ = std::countr_zero(static_cast<uint64_t>(page_tokens));
    token_bytes_ = (view.rank() == 4 ? view.dim(3) : 1) * dtype_bytes(view.dtype());
    page_bytes_ = view.row_stride() * dtype_bytes(view.dtype());
    base_ = static_cast<std::byte*>(view.raw()) + kv_head * page_tokens * token_bytes_;
  }

  std::byte* at(int64_t position) const {
    const int32_t page = pages_[static_cast<size_t>(position >> page_shift_) % pages_.size()];
    return base_ + page * page_bytes_ +
           (position & ((int64_t{1} << page_shift_) - 1)) * token_bytes_;
  }
  float* scale(int64_t position) const {
    return base_ == nullptr ? nullptr : reinterpret_cast<float*>(at(position));
  }

 private:
  std::span<const int32_t> pages_;
  std::byte* base_ = nullptr;
  int page_shift_ = 0;
  int64_t token_bytes_ = 0;
  int64_t page_bytes_ = 0;
};

// Where keys and values of one KV head of one sequence are.
class HeadPages {
 public:
  HeadPages(const PagedKv& cache, const SequenceRows& sequence, int64_t kv_head)
      : page_shift_(std::countr_zero(static_cast<uint64_t>(cache.page_tokens()))),
        keys_(cache.keys, sequence, kv_head),
        values_(cache.values, sequence, kv_head),
        key_scales_(cache.key_scales, sequence, kv_head),
        value_scales_(cache.value_scales, sequence, kv_head) {}

  std::byte* key(int64_t position) const { return keys_.at(position); }
  std::byte* value(int64_t position) const { return values_.at(position); }
  // int8 only.
  float* key_scale(int64_t position) const { return key_scales_.scale(position); }
  float* value_scale(int64_t position) const { return value_scales_.scale(position); }

  // The tile that starts at `position`, of which only `needed` is read with a meaning.
  KeyTile tile(int64_t position, KeyRange needed) const {
    KeyTile tile;
    tile.segment_shift = std::min<int>(page_shift_, std::countr_zero(unsigned{kTileKeys}));
    const int64_t segment = int64_t{1} << tile.segment_shift;
    const int count = kTileKeys >> tile.segment_shift;
    int any = 0;
    for (int s = 0; s < count; ++s) {
      const int64_t start = position + s * segment;
      const bool wanted = start < needed.end && start + segment > needed.begin;
      tile.keys[s] = wanted ? key(start) : nullptr;
      if (!wanted) continue;
      tile.values[s] = value(start);
      tile.key_scales[s] = key_scale(start);
      tile.value_scales[s] = value_scale(start);
      any = s;
    }
    // Blocks may touch neighbours: let them find some memory.
    for (int s = 0; s < count; ++s) {
      if (tile.keys[s] != nullptr) continue;
      tile.keys[s] = tile.keys[any], tile.values[s] = tile.values[any];
      tile.key_scales[s] = tile.key_scales[any], tile.value_scales[s] = tile.value_scales[any];
    }
    return tile;
  }

 private:
  int page_shift_;
  HeadRows keys_, values_, key_scales_, value_scales_;
};

// A thread's scratch, in floats.
struct Scratch {
  static int64_t floats(int64_t head_dim) {
    return kTileQueries * (kTileKeys + 3 * padded_dim(head_dim)) + packed_floats(head_dim);
  }
  Scratch(float* base, int64_t head_dim)
      : probabilities(base),
        queries(probabilities + kTileQueries * kTileKeys),
        weighted(queries + kTileQueries * padded_dim(head_dim)),
        merged(weighted + kTileQueries * padded_dim(head_dim)),
        packed(merged + kTileQueries * padded_dim(head_dim)) {}

  float* probabilities;
  float* queries;
  float* weighted;
  float* merged;
  float* packed;
};

// A running softmax of an item's queries.
struct Partial {
  float* largest;   // [queries]
  float* sum;       // [queries]
  float* weighted;  // [queries, padded_dim(head_dim)]
};

// The computation of one call, shared by its threads.
struct AttentionRun {
  const TensorView& queries;
  const TensorView& out;
  const PagedKv& cache;
  std::span<const SequenceRows> sequences;
  AttentionShape shape;
  float scale;
  AttentionPlan plan;
  const AttentionKernels& kernels;

  int64_t head_dim() const { return shape.head_dim; }
  int64_t row_floats() const { return padded_dim(shape.head_dim); }

  // Element 0 of query `n` (of the item's sequence and KV head) in q or out.
  float* query(const TensorView& view, const AttentionItem& item, int64_t n) const {
    const int64_t row = sequences[item.sequence].first_row + n / shape.group;
    const int64_t head = item.kv_head * shape.group + n % shape.group;
    return view.row<float>(row) + head * head_dim();
  }

  KeyRange row_keys(const AttentionItem& item, int q) const {
    return visible_keys(sequences[item.sequence], (item.first_query + q) / shape.group,
                        shape.window);
  }
  KeyRange item_keys(const AttentionItem& item) const {
    return visible_keys(sequences[item.sequence], item.first_query, item.num_queries, shape.group,
                        shape.window);
  }

  static KeyRange split_keys(int64_t split) {
    return {split * kSplitKeys, (split + 1) * kSplitKeys};
  }
  static bool overlap(KeyRange a, KeyRange b) { return a.begin < b.end && b.begin < a.end; }

  // Softmax of the item's queries over the keys of one split; leaves it in `tile`.
  void fold_split(const AttentionItem& item, int64_t split, const HeadPages& pages,
                  QueryTile& tile) const {
    KeyRange keys = item_keys(item);
    keys.begin = std::max(keys.begin, split_keys(split).begin);
    keys.end = std::min(keys.end, split_keys(split).end);
    KeyRange rows[kTileQueries];
    for (int q = 0; q < item.num_queries; ++q) {
      rows[q] = row_keys(item, q);
      tile.largest[q] = -std::numeric_limits<float>::infinity();
      tile.sum[q] = 0;
    }
    std::memset(tile.weighted, 0, sizeof(float) * item.num_queries * row_floats());
    const DType dtype = cache.keys.dtype();
    const auto fold = dtype == DType::kF32    ? kernels.fold_f32
                      : dtype == DType::kBF16 ? kernels.fold_bf16
                                              : kernels.fold_i8;
    const int64_t first = keys.begin / kTileKeys * kTileKeys;
    KeyTile current = pages.tile(first, keys);
    for (int64_t start = first; start < keys.end; start += kTileKeys) {
      for (int q = 0; q < item.num_queries; ++q) {
        tile.begin[q] =
            static_cast<int32_t>(std::clamp<int64_t>(rows[q].begin - start, 0, kTileKeys));
        tile.end[q] = static_cast<int32_t>(std::clamp<int64_t>(rows[q].end - start, 0, kTileKeys));
      }
      const bool last = start + kTileKeys >= keys.end;
      const KeyTile next = last ? KeyTile{} : pages.tile(start + kTileKeys, keys);
      fold(tile, current, last ? nullptr : &next);
      current = next;
    }
  }

  // Folds the split's result into that of the splits before it. `seen` says which queries have seen
  // a key yet.
  void merge_split(const AttentionItem& item, int64_t split, const Partial& from,
                   const Partial& into, bool (&seen)[kTileQueries]) const {
    for (int q = 0; q < item.num_queries; ++q) {
      if (!overlap(row_keys(item, q), split_keys(split))) continue;
      const float* weighted = from.weighted + q * row_floats();
      float* merged = into.weighted + q * row_floats();
      if (seen[q]) {
        kernels.merge(&into.largest[q], &into.sum[q], merged, from.largest[q], from.sum[q],
                      weighted, head_dim());
      } else {
        into.largest[q] = from.largest[q];
        into.sum[q] = from.sum[q];
        std::memcpy(merged, weighted, sizeof(float) * row_floats());
        seen[q] = true;
      }
    }
  }

  void finish(const AttentionItem& item, const Partial& result) const {
    for (int q = 0; q < item.num_queries; ++q) {
      kernels.finish(result.weighted + q * row_floats(), result.sum[q],
                     query(out, item, item.first_query + q), head_dim());
    }
  }

  Partial partial(const AttentionItem& item, int64_t index) const {
    float* base =
        plan.partials.data() + item.partials + index * partial_floats(item.num_queries, head_dim());
    return {base, base + item.num_queries, base + 2 * item.num_queries};
  }

  void run(const AttentionItem& item, const Scratch& scratch) const {
    QueryTile tile;
    tile.num_queries = item.num_queries;
    tile.head_dim = head_dim();
    tile.scale = scale;
    tile.probabilities = scratch.probabilities;
    tile.packed = scratch.packed;
    tile.queries = scratch.queries;
    for (int q = 0; q < item.num_queries; ++q) {
      float* row = scratch.queries + q * row_floats();
      std::memcpy(row, query(queries, item, item.first_query + q), sizeof(float) * head_dim());
      std::fill(row + head_dim(), row + row_floats(), 0.0f);
    }
    const HeadPages pages(cache, sequences[item.sequence], item.kv_head);
    if (item.split >= 0) {
      run_one_split(item, pages, tile, scratch);
    } else {
      run_all_splits(item, pages, tile, scratch);
    }
  }

  void run_all_splits(const AttentionItem& item, const HeadPages& pages, QueryTile& tile,
                      const Scratch& scratch) const {
    const KeyRange keys = item_keys(item);
    const int64_t begin = first_split(keys);
    const int64_t end = begin + num_splits(keys);
    tile.weighted = scratch.weighted;
    const Partial part{tile.largest, tile.sum, tile.weighted};
    if (end - begin == 1) {
      fold_split(item, begin, pages, tile);
      finish(item, part);
      return;
    }
    float largest[kTileQueries];
    float sum[kTileQueries];
    bool seen[kTileQueries] = {};
    const Partial merged{largest, sum, scratch.merged};
    for (int64_t split = begin; split < end; ++split) {
      fold_split(item, split, pages, tile);
      merge_split(item, split, part, merged, seen);
    }
    finish(item, merged);
  }

  void run_one_split(const AttentionItem& item, const HeadPages& pages, QueryTile& tile,
                     const Scratch& scratch) const {
    const KeyRange keys = item_keys(item);
    const int64_t begin = first_split(keys);
    const int64_t count = num_splits(keys);
    const Partial mine = partial(item, item.split - begin);
    tile.weighted = mine.weighted;
    fold_split(item, item.split, pages, tile);
    std::copy_n(tile.largest, item.num_queries, mine.largest);
    std::copy_n(tile.sum, item.num_queries, mine.sum);

    std::atomic_ref<int32_t> countdown(plan.countdowns[item.countdown]);
    if (countdown.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    float largest[kTileQueries];
    float sum[kTileQueries];
    bool seen[kTileQueries] = {};
    const Partial merged{largest, sum, scratch.merged};
    for (int64_t i = 0; i < count; ++i) {
      merge_split(item, begin + i, partial(item, i), merged, seen);
    }
    finish(item, merged);
  }
};

// Of one token's key of one head, its scale included.
double head_bytes(const PagedKv& cache) {
  const DType dtype = cache.keys.dtype();
  const int64_t scale = dtype == DType::kI8 ? dtype_bytes(DType::kF32) : 0;
  return static_cast<double>(cache.head_dim() * dtype_bytes(dtype) + scale);
}

// Each sequence's visible keys and values once; two products of q with each key a row sees.
OpWork attention_work(const TensorView& q, const PagedKv& cache,
                      std::span<const SequenceRows> sequences, int64_t window) {
  double keys_read = 0, keys_met = 0;
  for (const SequenceRows& sequence : sequences) {
    if (sequence.num_rows == 0) continue;
    const KeyRange last = visible_keys(sequence, sequence.num_rows - 1, window);
    keys_read += static_cast<double>(last.end - visible_keys(sequence, 0, window).begin);
    for (int64_t row = 0; row < sequence.num_rows; ++row) {
      const KeyRange keys = visible_keys(sequence, row, window);
      keys_met += static_cast<double>(keys.end - keys.begin);
    }
  }
  return {
      .state_bytes = 2 * head_bytes(cache) * static_cast<double>(cache.num_kv_heads()) * keys_read,
      .activation_bytes = 2 * 4.0 * static_cast<double>(q.num_elements()),
      .operations = 4 * keys_met * static_cast<double>(q.dim(1) * q.dim(2))};
}

}  // namespace

void write_kv(Stream& stream, const TensorView& k, const TensorView& v,
              std::span<const SequenceRows> sequences, const PagedKv& cache) {
  check_cache(cache);
  BRAID_CHECK(k.rank() == 3 && k.shape() == v.shape() && k.dim(1) == cache.num_kv_heads() &&
                  k.dim(2) == cache.head_dim(),
              "k {}, v {} for a cache of {}", to_string(k.shape()), to_string(v.shape()),
              to_string(cache.keys.shape()));
  int64_t num_rows = 0;
  for (const SequenceRows& sequence : sequences) {
    check_sequence(sequence, cache, k.dim(0), sequence.num_rows);
    num_rows += sequence.num_rows;
  }
  const int64_t kv_heads = cache.num_kv_heads();
  const int64_t head_dim = cache.head_dim();
  const OpScope op(stream, "write_kv", dtype_name(cache.keys.dtype()), [&] {
    const double heads = 2 * static_cast<double>(num_rows * kv_heads);
    return OpWork{.state_bytes = heads * head_bytes(cache),
                  .activation_bytes = 4 * heads * static_cast<double>(head_dim)};
  });
  if (num_rows == 0) return;
  if (!stream.is_cpu()) return cuda::write_kv(stream, k, v, sequences, cache);
  const AttentionKernels& kernels = BRAID_KERNELS(kAttentionKernels);
  const DType dtype = cache.keys.dtype();
  const auto put = [&](const float* from, std::byte* to, float* scale, float static_scale) {
    if (dtype == DType::kF32) {
      std::memcpy(to, from, sizeof(float) * head_dim);
    } else if (dtype == DType::kBF16) {
      kernels.to_bf16(from, to, head_dim);
    } else {
      kernels.to_i8(from, reinterpret_cast<int8_t*>(to), scale, static_scale, head_dim);
    }
  };
  split_rows(stream, num_rows, 2 * kv_heads * head_dim, [&](int64_t begin, int64_t end) {
    int64_t start = 0;  // of the sequence, in rows of all sequences
    for (const SequenceRows& sequence : sequences) {
      const int64_t first = std::max(begin, start);
      const int64_t last = std::min(end, start + sequence.num_rows);
      for (int64_t head = 0; first < last && head < kv_heads; ++head) {
        const HeadPages pages(cache, sequence, head);
        for (int64_t i = first; i < last; ++i) {
          const int64_t row = sequence.first_row + i - start;
          const int64_t position = sequence.first_position + i - start;
          put(k.row<float>(row) + head * head_dim, pages.key(position), pages.key_scale(position),
              cache.static_scales.key);
          put(v.row<float>(row) + head * head_dim, pages.value(position),
              pages.value_scale(position), cache.static_scales.value);
        }
      }
      start += sequence.num_rows;
    }
  });
}

void attention(Stream& stream, Workspace& workspace, const TensorView& q, const PagedKv& cache,
               std::span<const SequenceRows> sequences, const AttentionOptions& options,
               const TensorView& out) {
  check_cache(cache);
  BRAID_CHECK(q.rank() == 3 && q.shape() == out.shape() && q.dim(2) == cache.head_dim() &&
                  q.dim(1) > 0 && q.dim(1) % cache.num_kv_heads() == 0,
              "q {}, out {} for a cache of {}", to_string(q.shape()), to_string(out.shape()),
              to_string(cache.keys.shape()));
  BRAID_CHECK(options.window >= 0, "window {}", options.window);
  for (const SequenceRows& sequence : sequences) {
    const int64_t needed = sequence.num_rows == 0
                               ? 0
                               : visible_keys(sequence, sequence.num_rows - 1, options.window).end -
                                     visible_keys(sequence, 0, options.window).begin;
    check_sequence(sequence, cache, q.dim(0), needed);
  }
  const AttentionShape shape{.kv_heads = cache.num_kv_heads(),
                             .group = q.dim(1) / cache.num_kv_heads(),
                             .head_dim = cache.head_dim(),
                             .window = options.window};
  const OpScope op(stream, "attention", dtype_name(cache.keys.dtype()),
                   [&] { return attention_work(q, cache, sequences, options.window); });
  Workspace::Scope scope(workspace);
  if (!stream.is_cpu()) {
    return cuda::attention(stream, workspace, q, cache, sequences, options, out);
  }
  const int num_threads = stream.pool().num_threads();
  const int64_t scratch_floats = Scratch::floats(shape.head_dim);
  const TensorView scratch = workspace.take(DType::kF32, {num_threads, scratch_floats});
  const AttentionRun run{.queries = q,
                         .out = out,
                         .cache = cache,
                         .sequences = sequences,
                         .shape = shape,
                         .scale = options.scale,
                         .plan = plan_attention(workspace, sequences, shape, num_threads),
                         .kernels = BRAID_KERNELS(kAttentionKernels)};
  stream.pool().parallel_for(
      static_cast<int64_t>(run.plan.items.size()), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; ++i) {
          run.run(run.plan.items[i], Scratch(scratch.row<float>(thread), shape.head_dim));
        }
      });
}

}  // namespace braid

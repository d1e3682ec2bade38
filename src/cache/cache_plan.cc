#include "cache/cache_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace braid {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxTokens = int64_t{1} << 40;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t checked_product(int64_t a, int64_t b, const CacheOptions& options) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error("cache: max_tokens {} with max_sequences {} needs more memory than can be named",
                options.max_tokens, options.max_sequences);
  }
  return product;
}

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw Error("cache: {} is {}, must be from {} to {}", name, value, low, high);
  }
}

void check_options(const CacheOptions& options) {
  check_range("page_tokens", options.page_tokens, 8, 256);
  if (!std::has_single_bit(static_cast<uint64_t>(options.page_tokens))) {
    throw Error("cache: page_tokens is {}, must be a power of two", options.page_tokens);
  }
  const DType kv = options.kv_dtype;
  if (kv != DType::kF32 && kv != DType::kBF16 && kv != DType::kI8) {
    throw Error("cache: kv_dtype is {}, must be f32, bf16 or i8", dtype_name(kv));
  }
  check_range("max_tokens", options.max_tokens, 1, kMaxTokens);
  check_range("max_sequences", options.max_sequences, 1, kMaxInt32);
  check_range("max_sequence_tokens", options.max_sequence_tokens, 1, kMaxInt32);
  check_range("max_step_tokens", options.max_step_tokens, 1, kMaxInt32);
  check_range("max_logged_tokens", options.max_logged_tokens, 0, options.max_step_tokens);
}

// The most pages that max_sequences sequences of max_tokens tokens together can need: each may end
// in a page with a single token.
int64_t full_pages(const CacheOptions& o) {
  const int64_t sequences = std::min(o.max_sequences, o.max_tokens);
  return (o.max_tokens + sequences * (o.page_tokens - 1)) / o.page_tokens;
}

void size_group(CacheGroup& group, const CacheOptions& o) {
  const int64_t page_table = ceil_div(o.max_sequence_tokens, o.page_tokens);
  group.num_pages = full_pages(o);
  group.max_pages_per_sequence = page_table;
  if (!group.is_full()) {
    const int64_t step = std::min(o.max_step_tokens, o.max_sequence_tokens);
    const int64_t live = std::min(group.window, o.max_sequence_tokens) - 1 + step;
    group.max_pages_per_sequence = std::min(ceil_div(live, o.page_tokens) + 1, page_table);
    group.num_pages = std::min(group.num_pages,
                               checked_product(o.max_sequences, group.max_pages_per_sequence, o));
  }
  if (group.num_pages > kMaxInt32) {
    throw Error("cache: max_tokens {} makes {} pages of {} tokens, more than {}; use larger pages",
                o.max_tokens, group.num_pages, o.page_tokens, kMaxInt32);
  }
  // Of one key; int8 has a float32 scale for each.
  int64_t bytes = checked_product(group.head_dim, dtype_bytes(o.kv_dtype), o);
  if (o.kv_dtype == DType::kI8) bytes += dtype_bytes(DType::kF32);
  bytes = checked_product(bytes, checked_product(2, group.num_kv_heads, o), o);
  group.bytes_per_token = checked_product(bytes, static_cast<int64_t>(group.layers.size()), o);
  group.page_bytes = checked_product(group.bytes_per_token, o.page_tokens, o);
  group.size_bytes = checked_product(group.page_bytes, group.num_pages, o);
}

int find_or_add_group(std::vector<RecurrentGroup>& groups, const RecurrentState& shape) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].shape == shape) return static_cast<int>(g);
  }
  groups.push_back({.shape = shape});
  return static_cast<int>(groups.size()) - 1;
}

void size_group(RecurrentGroup& group, const CacheOptions& o) {
  const RecurrentState& s = group.shape;
  const int64_t state = s.value_heads * s.value_dim * s.key_dim;
  const int64_t log_entry =
      s.conv_channels + s.key_heads * s.key_dim + s.value_heads * s.value_dim + s.value_heads;
  int64_t floats = checked_product(log_entry, o.max_logged_tokens, o);
  floats += state + (s.conv_width - 1) * s.conv_channels;
  group.num_slots = std::min(o.max_sequences, o.max_tokens);
  group.slot_bytes = checked_product(floats * dtype_bytes(DType::kF32),
                                     static_cast<int64_t>(group.layers.size()), o);
  group.size_bytes = checked_product(group.slot_bytes, group.num_slots, o);
}

int find_or_add_group(std::vector<CacheGroup>& groups, int64_t num_kv_heads, int64_t head_dim,
                      int64_t window) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].num_kv_heads == num_kv_heads && groups[g].head_dim == head_dim &&
        groups[g].window == window) {
      return static_cast<int>(g);
    }
  }
  groups.push_back({.num_kv_heads = num_kv_heads, .head_dim = head_dim, .window = window});
  return static_cast<int>(groups.size()) - 1;
}

}  // namespace

CachePlan plan_cache(const CacheLayout& layout, const CacheOptions& options) {
  CachePlan plan;
  plan.options = options;
  if (options.max_sequence_tokens == 0) {
    plan.options.max_sequence_tokens = std::min(options.max_tokens, kMaxInt32);
  }
  check_options(plan.options);

  for (size_t l = 0; l < layout.layers.size(); ++l) {
    const LayerCache& declared = layout.layers[l];
    const int64_t layer = static_cast<int64_t>(l);
    CachePlan::Layer entry;
    if (const auto* full = std::get_if<FullKv>(&declared)) {
      BRAID_CHECK(full->num_kv_heads > 0 && full->head_dim > 0, "layer {}: {} x {}", layer,
                  full->num_kv_heads, full->head_dim);
      entry = {find_or_add_group(plan.groups, full->num_kv_heads, full->head_dim, 0), layer};
    } else if (const auto* ring = std::get_if<WindowKv>(&declared)) {
      BRAID_CHECK(ring->num_kv_heads > 0 && ring->head_dim > 0 && ring->window > 0,
                  "layer {}: {} x {}, window {}", layer, ring->num_kv_heads, ring->head_dim,
                  ring->window);
      entry = {find_or_add_group(plan.groups, ring->num_kv_heads, ring->head_dim, ring->window),
               layer};
    } else if (const auto* shared = std::get_if<SharesKvOf>(&declared)) {
      BRAID_CHECK(shared->layer >= 0 && shared->layer < layer &&
                      plan.layers[shared->layer].owner == shared->layer,
                  "layer {} shares the keys and values of layer {}", layer, shared->layer);
      entry = plan.layers[shared->layer];
    } else if (const auto* state = std::get_if<RecurrentState>(&declared)) {
      BRAID_CHECK(state->key_heads > 0 && state->value_heads > 0 && state->key_dim > 0 &&
                      state->value_dim > 0 && state->conv_channels > 0 && state->conv_width > 0,
                  "layer {}: a recurrent state without extent", layer);
      entry.recurrent_group = find_or_add_group(plan.recurrent_groups, *state);
      plan.recurrent_groups[entry.recurrent_group].layers.push_back(layer);
    }
    if (entry.owner == layer) plan.groups[entry.group].layers.push_back(layer);
    plan.layers.push_back(entry);
  }

  int64_t total = 0;
  const auto size = [&](auto& groups) {
    for (auto& group : groups) {
      size_group(group, plan.options);
      if (__builtin_add_overflow(total, group.size_bytes, &total)) {
        throw Error("cache: max_tokens {} needs more memory than can be named", options.max_tokens);
      }
    }
  };
  size(plan.groups);
  size(plan.recurrent_groups);
  return plan;
}

int64_t pages_for_tokens(const CacheGroup& group, int64_t page_tokens, int64_t num_tokens) {
  return std::min(ceil_div(num_tokens, page_tokens), group.max_pages_per_sequence);
}

int64_t CachePlan::full_bytes_per_token() const {
  int64_t sum = 0;
  for (const CacheGroup& group : groups) sum += group.is_full() ? group.bytes_per_token : 0;
  return sum;
}

int64_t CachePlan::window_bytes_per_token() const {
  int64_t sum = 0;
  for (const CacheGroup& group : groups) sum += group.is_full() ? 0 : group.bytes_per_token;
  return sum;
}

int64_t CachePlan::recurrent_bytes_per_sequence() const {
  int64_t sum = 0;
  for (const RecurrentGroup& group : recurrent_groups) sum += group.slot_bytes;
  return sum;
}

int64_t CachePlan::sequence_bytes(int64_t num_tokens) const {
  int64_t sum = num_tokens > 0 ? recurrent_bytes_per_sequence() : 0;
  for (const CacheGroup& group : groups) {
    sum += pages_for_tokens(group, options.page_tokens, num_tokens) * group.page_bytes;
  }
  return sum;
}

int64_t CachePlan::size_bytes() const {
  int64_t sum = 0;
  for (const CacheGroup& group : groups) sum += group.size_bytes;
  for (const RecurrentGroup& group : recurrent_groups) sum += group.size_bytes;
  return sum;
}

}  // namespace braid

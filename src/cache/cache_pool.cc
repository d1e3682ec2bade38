#include "cache/cache_pool.h"

#include <algorithm>

#include "base/check.h"

namespace braid {
namespace {

int64_t index_in(const std::vector<int64_t>& layers, int64_t layer) {
  return std::find(layers.begin(), layers.end(), layer) - layers.begin();
}

}  // namespace

CachePool::CachePool(const CacheLayout& layout, const CacheOptions& options, Device device)
    : plan_(plan_cache(layout, options)) {
  for (const CacheGroup& group : plan_.groups) {
    stores_.emplace_back(group, plan_.options.page_tokens, plan_.options.kv_dtype, device);
    allocators_.emplace_back(group.num_pages);
  }
  for (const RecurrentGroup& group : plan_.recurrent_groups) {
    slots_.emplace_back(group, plan_.options.max_logged_tokens, device);
    slot_allocators_.emplace_back(group.num_slots);
  }
}

CachePool::~CachePool() {
  BRAID_CHECK(idle(), "{} bytes are still held by sequences", used_bytes());
}

PagedKv CachePool::layer_kv(int64_t layer) const {
  const CachePlan::Layer& entry = plan_.layers.at(layer);
  if (entry.group < 0) return {};
  return stores_[entry.group].layer(index_in(plan_.groups[entry.group].layers, entry.owner));
}

RecurrentLayer CachePool::layer_recurrent(int64_t layer) const {
  const int group = layer_recurrent_group(layer);
  if (group < 0) return {};
  return slots_[group].layer(index_in(plan_.recurrent_groups[group].layers, layer));
}

int64_t CachePool::size_bytes() const {
  int64_t sum = 0;
  for (const KvStore& store : stores_) sum += store.size_bytes();
  for (const RecurrentSlots& slots : slots_) sum += slots.size_bytes();
  return sum;
}

int64_t CachePool::used_bytes() const {
  int64_t sum = 0;
  for (int g = 0; g < num_groups(); ++g) sum += num_used_pages(g) * plan_.groups[g].page_bytes;
  for (int g = 0; g < num_recurrent_groups(); ++g) {
    sum += slot_allocators_[g].num_used() * plan_.recurrent_groups[g].slot_bytes;
  }
  return sum;
}

}  // namespace braid

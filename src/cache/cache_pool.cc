#include "cache/cache_pool.h"

#include <algorithm>

#include "base/check.h"

namespace braid {

CachePool::CachePool(const CacheLayout& layout, const CacheOptions& options, Device device)
    : plan_(plan_cache(layout, options)) {
  for (const CacheGroup& group : plan_.groups) {
    stores_.emplace_back(group, plan_.options.page_tokens, plan_.options.kv_dtype, device);
    allocators_.emplace_back(group.num_pages);
  }
}

CachePool::~CachePool() {
  BRAID_CHECK(idle(), "{} bytes of pages are still held by sequences", used_bytes());
}

PagedKv CachePool::layer_kv(int64_t layer) const {
  const auto [group, owner] = plan_.layers.at(layer);
  if (group < 0) return {};
  const std::vector<int64_t>& layers = plan_.groups[group].layers;
  return stores_[group].layer(std::find(layers.begin(), layers.end(), owner) - layers.begin());
}

int64_t CachePool::size_bytes() const {
  int64_t sum = 0;
  for (const KvStore& store : stores_) sum += store.size_bytes();
  return sum;
}

int64_t CachePool::used_bytes() const {
  int64_t sum = 0;
  for (int g = 0; g < num_groups(); ++g) sum += num_used_pages(g) * plan_.groups[g].page_bytes;
  return sum;
}

}  // namespace braid

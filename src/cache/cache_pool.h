#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_plan.h"
#include "cache/kv_store.h"
#include "cache/page_allocator.h"
#include "ops/attention/paged_kv.h"
#include "tensor/device.h"

namespace braid {

// The cache of one rank: per group a device store and the account of its free pages. Sequences
// (cache/sequence_state.h) take pages from it and must be gone before it is. Used by one thread.
class CachePool {
 public:
  // Throws Error for options that cannot be used or memory that cannot be had.
  CachePool(const CacheLayout& layout, const CacheOptions& options, Device device = {});
  ~CachePool();
  CachePool(const CachePool&) = delete;
  CachePool& operator=(const CachePool&) = delete;

  const CachePlan& plan() const { return plan_; }
  int num_groups() const { return static_cast<int>(plan_.groups.size()); }
  int64_t num_layers() const { return static_cast<int64_t>(plan_.layers.size()); }
  // -1: the layer remembers nothing.
  int layer_group(int64_t layer) const { return plan_.layers.at(layer).group; }
  // What the layer reads and, unless it shares a donor's, writes. Empty views if it remembers
  // nothing.
  PagedKv layer_kv(int64_t layer) const;

  int64_t num_free_pages(int group) const { return allocators_.at(group).num_free(); }
  int64_t num_used_pages(int group) const { return allocators_.at(group).num_used(); }
  // Of all stores; memory in use is used_bytes() at most at any time so far.
  int64_t size_bytes() const;
  // Of the pages that sequences hold now.
  int64_t used_bytes() const;
  // True if no sequence holds a page.
  bool idle() const { return used_bytes() == 0; }

 private:
  friend class SequenceState;

  CachePlan plan_;
  std::vector<KvStore> stores_;
  std::vector<PageAllocator> allocators_;
};

}  // namespace braid

#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_plan.h"
#include "cache/kv_store.h"
#include "cache/page_allocator.h"
#include "cache/recurrent_slots.h"
#include "ops/attention/paged_kv.h"
#include "tensor/device.h"

namespace braid {

// The cache of one rank: per group a device store and the account of its free pages or slots.
// Sequences (cache/sequence_state.h) take from it and must be gone before it is. Used by one
// thread.
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
  // -1: the layer has no keys and values.
  int layer_group(int64_t layer) const { return plan_.layers.at(layer).group; }
  // What the layer reads and, unless it shares a donor's, writes. Empty views if it has
  // none.
  PagedKv layer_kv(int64_t layer) const;

  int num_recurrent_groups() const { return static_cast<int>(plan_.recurrent_groups.size()); }
  // -1: the layer is not recurrent.
  int layer_recurrent_group(int64_t layer) const { return plan_.layers.at(layer).recurrent_group; }
  // Empty views if it is not recurrent.
  RecurrentLayer layer_recurrent(int64_t layer) const;

  int64_t num_free_pages(int group) const { return allocators_.at(group).num_free(); }
  int64_t num_used_pages(int group) const { return allocators_.at(group).num_used(); }
  int64_t num_free_slots(int recurrent_group) const {
    return slot_allocators_.at(recurrent_group).num_free();
  }
  // Of all stores; memory in use is used_bytes() at most at any time so far.
  int64_t size_bytes() const;
  // Of the pages and slots that sequences hold now.
  int64_t used_bytes() const;
  // True if no sequence holds anything.
  bool idle() const { return used_bytes() == 0; }

 private:
  friend class SequenceState;

  CachePlan plan_;
  std::vector<KvStore> stores_;
  std::vector<PageAllocator> allocators_;
  std::vector<RecurrentSlots> slots_;
  std::vector<PageAllocator> slot_allocators_;
};

}  // namespace braid

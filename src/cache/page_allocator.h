#pragma once

#include <cstdint>
#include <vector>

namespace braid {

// Which pages of one group are free: host data only. The page given back last is handed out first,
// since its memory is in use already. Never allocates after construction.
class PageAllocator {
 public:
  explicit PageAllocator(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(in_use_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_used() const { return num_pages() - num_free(); }

  // At least one page must be free.
  int32_t take();
  // `page` must be in use.
  void give_back(int32_t page);

 private:
  std::vector<int32_t> free_;  // a stack
  std::vector<bool> in_use_;
};

}  // namespace braid

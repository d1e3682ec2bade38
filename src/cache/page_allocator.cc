#include "cache/page_allocator.h"

#include <numeric>

#include "base/check.h"

namespace braid {

PageAllocator::PageAllocator(int64_t num_pages)
    : free_(static_cast<size_t>(num_pages)), in_use_(static_cast<size_t>(num_pages), false) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

int32_t PageAllocator::take() {
  BRAID_CHECK(!free_.empty(), "all {} pages are in use", num_pages());
  const int32_t page = free_.back();
  free_.pop_back();
  in_use_[page] = true;
  return page;
}

void PageAllocator::give_back(int32_t page) {
  BRAID_CHECK(page >= 0 && page < num_pages() && in_use_[page], "page {} of {}", page, num_pages());
  in_use_[page] = false;
  free_.push_back(page);
}

}  // namespace braid

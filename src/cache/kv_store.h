#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_plan.h"
#include "ops/attention/paged_kv.h"
#include "tensor/tensor.h"

namespace braid {

// Device memory for the keys and values of one group: per layer two tensors
// [pages, kv_heads, page_tokens, head_dim], and with int8 two of scales. Address space is reserved
// whole; physical memory is taken when a page is first written. Contents of a page that is handed
// on are left as they are.
class KvStore {
 public:
  KvStore(const CacheGroup& group, int64_t page_tokens, DType dtype, Device device);

  // `index` counts the group's layers.
  PagedKv layer(int64_t index) const;
  int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Layer {
    Tensor keys;
    Tensor values;
    Tensor key_scales;  // int8 only
    Tensor value_scales;
  };
  std::vector<Layer> layers_;
  int64_t size_bytes_ = 0;
};

}  // namespace braid

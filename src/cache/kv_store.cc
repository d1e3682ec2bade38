#include "cache/kv_store.h"

#include "base/check.h"

namespace braid {

KvStore::KvStore(const CacheGroup& group, int64_t page_tokens, DType dtype, Device device) {
  const Shape shape{group.num_pages, group.num_kv_heads, page_tokens, group.head_dim};
  for (size_t i = 0; i < group.layers.size(); ++i) {
    layers_.push_back({Tensor(dtype, shape, device), Tensor(dtype, shape, device)});
    size_bytes_ += 2 * shape.num_elements() * dtype_bytes(dtype);
  }
}

PagedKv KvStore::layer(int64_t index) const {
  BRAID_CHECK(index >= 0 && index < static_cast<int64_t>(layers_.size()), "layer {} of {}", index,
              layers_.size());
  return {layers_[index].keys, layers_[index].values};
}

}  // namespace braid

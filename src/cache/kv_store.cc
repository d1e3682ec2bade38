#include "cache/kv_store.h"

#include "base/check.h"

namespace braid {

KvStore::KvStore(const CacheGroup& group, int64_t page_tokens, DType dtype, Device device) {
  const Shape shape{group.num_pages, group.num_kv_heads, page_tokens, group.head_dim};
  for (size_t i = 0; i < group.layers.size(); ++i) {
    Layer layer{.keys = Tensor(dtype, shape, device), .values = Tensor(dtype, shape, device)};
    size_bytes_ += 2 * shape.num_elements() * dtype_bytes(dtype);
    if (dtype == DType::kI8) {
      const Shape scales{group.num_pages, group.num_kv_heads, page_tokens};
      layer.key_scales = Tensor(DType::kF32, scales, device);
      layer.value_scales = Tensor(DType::kF32, scales, device);
      size_bytes_ += 2 * scales.num_elements() * dtype_bytes(DType::kF32);
    }
    layers_.push_back(std::move(layer));
  }
}

PagedKv KvStore::layer(int64_t index) const {
  BRAID_CHECK(index >= 0 && index < static_cast<int64_t>(layers_.size()), "layer {} of {}", index,
              layers_.size());
  const Layer& layer = layers_[index];
  PagedKv kv{layer.keys, layer.values};
  if (!layer.key_scales.shape().rank()) return kv;
  kv.key_scales = layer.key_scales;
  kv.value_scales = layer.value_scales;
  return kv;
}

}  // namespace braid

#include "models/model.h"

#include <variant>

#include "base/error.h"
#include "cache/cache_pool.h"

namespace braid {

KvScales Model::kv_scales(int64_t) const { return {}; }

bool has_kv_scales(const Model& model, const std::string& origin) {
  const CacheLayout layout = model.cache_layout();
  int64_t with = -1, without = -1;
  for (int64_t i = 0; i < model.num_layers(); ++i) {
    const LayerCache& layer = layout.layers[i];
    if (!std::holds_alternative<FullKv>(layer) && !std::holds_alternative<WindowKv>(layer)) {
      continue;
    }
    (model.kv_scales(i) == KvScales{} ? without : with) = i;
  }
  if (with >= 0 && without >= 0) {
    throw Error(
        "{}: layers.{}.self_attn.k_scale and v_scale are missing, but layer {} has such scales of "
        "its keys and values; all layers must have them, or none",
        origin, without, with);
  }
  return with >= 0;
}

PagedKv layer_kv(const Model& model, const CachePool& pool, int64_t layer) {
  PagedKv kv = pool.layer_kv(layer);
  const CacheOptions& options = pool.plan().options;
  if (options.kv_dtype == DType::kI8 && !options.dynamic_kv_scales) {
    kv.static_scales = model.kv_scales(layer);
  }
  return kv;
}

void Model::rebind_layer(int64_t, const WeightMap&) {
  throw Error("layers of {} models cannot be replaced", family());
}

void Model::place_shared(Placement&) {
  throw Error("layers of {} models cannot be placed one by one", family());
}

void Model::place_layer(int64_t, Placement& placement) { place_shared(placement); }

}  // namespace braid

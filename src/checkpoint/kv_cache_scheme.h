#pragma once

#include <string>

#include "checkpoint/config_reader.h"
#include "checkpoint/weight_map.h"

namespace braid {

// How a checkpoint means keys and values to be stored (kv_cache_scheme of compressed-tensors).
struct KvCacheScheme {
  enum class Kind : uint8_t {
    kNone,         // it does not say
    kStaticInt8,   // one scale a layer for keys and one for values, which the files hold
    kDynamicInt8,  // scales made of what is stored
    kOther,        // one that braid does not have
  };
  Kind kind = Kind::kNone;
  std::string other;  // of kOther: the field and its value

  bool is_int8() const { return kind == Kind::kStaticInt8 || kind == Kind::kDynamicInt8; }

  // Of a quantization_config. Throws Error for fields of the wrong type.
  static KvCacheScheme read(const ConfigReader& quantization);
};

// Leaves scales of keys and values in `weights` only if they are static ones of int8, under the
// names ….self_attn.k_scale and v_scale (files may have k_proj.output_scale and
// v_proj.output_scale). Others are dropped, with a warning: it is unknown what they are scales of.
// Throws Error if static ones are missing altogether, or come with zero points other than 0.
void settle_kv_scales(WeightMap& weights, const KvCacheScheme& scheme);

}  // namespace braid

#pragma once

#include <functional>
#include <memory>

#include "models/model.h"
#include "speculative/drafter.h"
#include "tensor/dtype.h"
#include "tensor/stream.h"

namespace braid {

// How much the engine that a drafter serves computes.
struct DrafterSizes {
  ActivationPrecision precision = ActivationPrecision::kF32;
  DType kv_dtype = DType::kF32;
  bool dynamic_kv_scales = false;  // CacheOptions
  int64_t max_context = 0;         // tokens of one sequence
  int64_t max_sequences = 1;       // known at a time
  int64_t max_step_tokens = 1;     // most tokens in one forward pass
  int64_t max_drafts = 1;          // of one request
};

// What a drafter needs to know of the engine it serves. The references must outlive it.
struct DrafterSetup : DrafterSizes {
  DrafterSetup(const DrafterSizes& sizes, const Model& target, Stream& stream)
      : DrafterSizes(sizes), target(target), stream(stream) {}

  const Model& target;
  Stream& stream;
};

// Throws Error if the drafter does not go with the target.
using DrafterFactory = std::function<std::unique_ptr<Drafter>(const DrafterSetup&)>;

}  // namespace braid

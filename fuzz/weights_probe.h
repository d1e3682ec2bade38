#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/weight_map.h"

namespace braid::fuzz {

// Uses a parsed file as a model would: reads the ends of each tensor and expands the small ones.
inline void probe_weights(const std::vector<StoredTensor>& tensors) {
  WeightMap map;
  for (const StoredTensor& tensor : tensors) map.add(tensor);
  WeightBinder binder(map);
  uint64_t sum = 0;
  for (const auto& [name, tensor] : map.tensors()) {
    const Weight& weight = tensor.weight;
    if (weight.format == nullptr) {
      binder.ignore(name, "unreadable");
      continue;
    }
    BRAID_CHECK(weight.size_bytes() == tensor.stored_bytes, "{}: {} bytes", name,
                tensor.stored_bytes);
    sum += static_cast<uint64_t>(weight.data[0]) +
           static_cast<uint64_t>(weight.data[tensor.stored_bytes - 1]);
    if (weight.shape.num_elements() <= 4096) {
      binder.f32(name, weight.shape);
    } else {
      binder.weight(name, weight.shape);
    }
  }
  volatile uint64_t sink = sum;
  static_cast<void>(sink);
  BRAID_CHECK(!to_string(binder.finish()).empty());
}

}  // namespace braid::fuzz

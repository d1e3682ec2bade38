#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_plan.h"
#include "ops/gated_delta/recurrent_store.h"
#include "tensor/tensor.h"

namespace braid {

// What a sequence's recurrent layers held at one length: a copy, for resuming there later.
// Float32, exactly as the layers carry it on.
struct RecurrentSnapshot {
  int64_t length = 0;
  int32_t num_replayed = 0;
  std::vector<float> values;  // layer by layer: states, convolution rows, then the live log entries
};

// Device memory for the recurrent layers of one group: a slot a sequence. Address space is reserved
// whole; physical memory is taken when a slot is first written.
class RecurrentSlots {
 public:
  RecurrentSlots(const RecurrentGroup& group, int64_t max_logged_tokens, Device device);

  // `index` counts the group's layers.
  RecurrentLayer layer(int64_t index) const;
  int64_t size_bytes() const { return size_bytes_; }

  // Appends the slot's contents to `values`, or takes them from there, from `offset` on, which
  // advances.
  void save(int32_t slot, int32_t num_replayed, std::vector<float>& values) const;
  void load(int32_t slot, int32_t num_replayed, const std::vector<float>& values, size_t& offset);

 private:
  struct Layer {
    Tensor states, conv_rows, logged_keys, logged_updates, logged_decays;
  };
  template <typename Visit>
  void for_each_row(int32_t slot, int32_t num_replayed, const Visit& visit) const;

  RecurrentState shape_;
  Device device_;
  std::vector<Layer> layers_;
  int64_t size_bytes_ = 0;
};

}  // namespace braid

#pragma once

#include <span>

#include "layers/placement.h"
#include "layers/step_context.h"
#include "tensor/tensor.h"

namespace braid {

// Rotary position embedding of one layer kind: its frequencies, and the distance between the two
// elements of a pair; cosines and sines are multiplied by `magnitude`.
class Rotary {
 public:
  // Cosines and sines of the step's positions, shared by all layers of the kind.
  struct Tables {
    TensorView cos;  // [tokens, pairs]
    TensorView sin;
  };

  Rotary() = default;
  Rotary(std::span<const float> frequencies, int64_t pair_distance, float magnitude = 1);

  Tables tables(StepContext& step) const;
  // x: [tokens, heads, head_dim], in place.
  void apply(StepContext& step, const Tables& tables, const TensorView& x) const;

  int64_t pair_distance() const { return pair_distance_; }

  void place(Placement& placement) { placement.place(frequencies_); }

 private:
  Tensor frequencies_;
  int64_t pair_distance_ = 0;
  float magnitude_ = 1;
};

}  // namespace braid

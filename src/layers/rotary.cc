#include "layers/rotary.h"

#include <algorithm>

#include "ops/elementwise/elementwise.h"
#include "ops/rope/rope.h"

namespace braid {

Rotary::Rotary(std::span<const float> frequencies, int64_t pair_distance, float magnitude)
    : frequencies_(DType::kF32, {static_cast<int64_t>(frequencies.size())}),
      pair_distance_(pair_distance),
      magnitude_(magnitude) {
  std::copy(frequencies.begin(), frequencies.end(), frequencies_.data<float>());
}

Rotary::Tables Rotary::tables(StepContext& step) const {
  const Shape shape{step.num_tokens(), frequencies_.shape().dim(0)};
  Tables tables{step.workspace.take(DType::kF32, shape), step.workspace.take(DType::kF32, shape)};
  rope_tables(step.stream, step.positions, frequencies_, tables.cos, tables.sin);
  if (magnitude_ != 1) {
    scale(step.stream, tables.cos, magnitude_);
    scale(step.stream, tables.sin, magnitude_);
  }
  return tables;
}

void Rotary::apply(StepContext& step, const Tables& tables, const TensorView& x) const {
  rope(step.stream, x, tables.cos, tables.sin, pair_distance_);
}

}  // namespace braid

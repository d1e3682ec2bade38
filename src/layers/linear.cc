#include "layers/linear.h"

#include "ops/linear/linear.h"

namespace braid {

TensorView Linear::run(StepContext& step, const TensorView& x) const {
  return run(step, prepare_input(step, x, {&weight_}));
}

TensorView Linear::run(StepContext& step, const LinearInput& x) const {
  TensorView y = step.workspace.take(DType::kF32, {x.x.dim(0), weight_.rows()});
  linear(step.stream, weight_, x, y);
  return y;
}

LinearInput prepare_input(StepContext& step, const TensorView& x,
                          std::initializer_list<const Weight*> readers) {
  ActivationPrecision precision = step.precision;
  Int8Scales scales{.per_block = false};
  if (precision == ActivationPrecision::kInt8) {
    for (const Weight* reader : readers) {
      if (!reader->empty()) scales.add(*reader->format);
    }
    if (!scales.per_block && !scales.per_token) precision = ActivationPrecision::kF32;
  }
  return prepare_linear_input(step.stream, step.workspace, x, precision, scales);
}

}  // namespace braid

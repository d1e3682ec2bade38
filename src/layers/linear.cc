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
  if (precision == ActivationPrecision::kInt8) {
    bool any_blocks = false;
    for (const Weight* reader : readers) any_blocks |= !reader->empty() && !reader->format->plain();
    if (!any_blocks) precision = ActivationPrecision::kF32;
  }
  return prepare_linear_input(step.stream, step.workspace, x, precision);
}

}  // namespace braid

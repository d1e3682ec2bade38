#pragma once

#include <initializer_list>

#include "layers/placement.h"
#include "layers/step_context.h"
#include "quant/weight.h"

namespace braid {

// A matrix without bias; knows nothing of the format it is stored in.
class Linear {
 public:
  Linear() = default;
  explicit Linear(Weight weight) : weight_(std::move(weight)) {}

  bool empty() const { return weight_.empty(); }
  int64_t out_features() const { return weight_.rows(); }
  const Weight& weight() const { return weight_; }

  // y = W·x in the step's workspace.  x: [tokens, in], result: [tokens, out].
  TensorView run(StepContext& step, const TensorView& x) const;
  TensorView run(StepContext& step, const LinearInput& x) const;

  void place(Placement& placement) { placement.place(weight_); }

 private:
  Weight weight_;
};

// Rounds x as the step's precision asks, once for all the matrices that read it.
LinearInput prepare_input(StepContext& step, const TensorView& x,
                          std::initializer_list<const Weight*> readers);

}  // namespace braid

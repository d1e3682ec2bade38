#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string>

#include "layers/placement.h"
#include "layers/step_context.h"
#include "quant/weight.h"

namespace braid {

// A matrix without bias; knows nothing of the format it is stored in.
class Linear {
 public:
  Linear() = default;
  explicit Linear(Weight weight, std::string name = {})
      : weight_(std::move(weight)), name_(std::move(name)) {}

  bool empty() const { return weight_.empty(); }
  int64_t out_features() const { return weight_.rows(); }
  const Weight& weight() const { return weight_; }
  Weight& weight() { return weight_; }
  // Of the tensor that it is, or is a part of: "layers.3.mlp.up_proj.weight". Empty: unknown.
  const std::string& name() const { return name_; }

  // y = W·x in the step's workspace.  x: [tokens, in], result: [tokens, out].
  TensorView run(StepContext& step, const TensorView& x) const;
  TensorView run(StepContext& step, const LinearInput& x) const;
  void run_to(StepContext& step, const LinearInput& x, const TensorView& y) const;
  // See linear_in_front().
  bool run_in_front(StepContext& step, const LinearInput& x, const TensorView& y,
                    int64_t next_bytes) const;
  // Tells the step's observer, if there is one, of a product that another op computes.
  void observe(StepContext& step, const LinearInput& x) const;

  void place(Placement& placement) { placement.place(weight_); }

 private:
  Weight weight_;
  std::string name_;
};

// What a product reads, for StepContext::ProductObserver.
TensorView observed_input(const LinearInput& x);

// Products of several matrices with one input: [tokens, out] for each, an empty view for an empty
// matrix. Matrices of one format that lie one behind the other (Placement::place_joined) are
// multiplied as one; each output is the same.
void run_all(StepContext& step, const LinearInput& x, std::span<const Linear* const> matrices,
             std::span<TensorView> results);
template <size_t kCount>
std::array<TensorView, kCount> run_all(StepContext& step, const LinearInput& x,
                                       const Linear* const (&matrices)[kCount]) {
  std::array<TensorView, kCount> results;
  run_all(step, x, matrices, results);
  return results;
}

// The precision that the step asks for, for the matrices that read an input.
InputRounding input_rounding(const StepContext& step, std::initializer_list<const Weight*> readers);
// Of matrices of gated blocks. On a CUDA device those are one pass over their weights for up to 64
// tokens, which rounding to int8 makes no faster: it is to bfloat16 then, unless deterministic.
InputRounding gated_input_rounding(const StepContext& step,
                                   std::initializer_list<const Weight*> readers);
// Of an input that a kernel on a CUDA device makes on its way if it is bfloat16. A scale of int8
// takes one more, which for up to 8 tokens costs more than products of bfloat16 inputs do.
InputRounding made_input_rounding(const StepContext& step,
                                  std::initializer_list<const Weight*> readers);

// Rounds x as the step's precision asks, once for all the matrices that read it.
LinearInput prepare_input(StepContext& step, const TensorView& x,
                          std::initializer_list<const Weight*> readers);

}  // namespace braid

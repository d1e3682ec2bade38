#pragma once

#include <initializer_list>
#include <optional>
#include <span>

#include "layers/placement.h"
#include "layers/step_context.h"
#include "ops/fused/residual.h"
#include "quant/weight.h"
#include "tensor/tensor.h"

namespace braid {

// RMS norm over the last dimension, with its weight as the model multiplies it (Gemma 3: already 1
// + w), or without one.
class RmsNorm {
 public:
  RmsNorm() = default;
  RmsNorm(Tensor weight, float epsilon) : weight_(std::move(weight)), epsilon_(epsilon) {}
  explicit RmsNorm(float epsilon) : epsilon_(epsilon) {}

  const Tensor& weight() const { return weight_; }
  float epsilon() const { return epsilon_; }
  bool has_weight() const { return !weight_.view().empty(); }

  // x: [..., width], of any rank: [tokens, heads, head_dim] norms each head on its own.
  // The result is in the step's workspace.
  TensorView run(StepContext& step, const TensorView& x) const;
  void run_in_place(StepContext& step, const TensorView& x) const;
  // y: of x's shape, rows may be strided.
  void run_to(StepContext& step, const TensorView& x, const TensorView& y) const;
  // The norm of x, [tokens, width], as the input of the matrices that read it.
  LinearInput prepare(StepContext& step, const TensorView& x,
                      std::initializer_list<const Weight*> readers) const;
  // For add_branch(): this norm's result as the input of products.
  InputNorm as_input(const InputRounding& rounding) const {
    return {weight_, epsilon_, rounding, {}};
  }
  // This norm on a branch's way into the residual stream.
  ResidualBranch on_branch(const TensorView& y, float factor = 1) const {
    return {.y = y, .norm = weight_, .epsilon = epsilon_, .factor = factor};
  }
  // residual += norm(x)
  void add_to(StepContext& step, const TensorView& x, const TensorView& residual) const;

  void place(Placement& placement) { placement.place(weight_); }

 private:
  Tensor weight_;
  float epsilon_ = 1e-6f;
};

// Where a device makes the sum at the end of a layer and the input of the next one in one pass:
// room for that input which outlives a layer's scratch memory, in the step's workspace.
class PassedNorm {
 public:
  // None.
  PassedNorm() = default;
  // For inputs [tokens, width]; none if the device has no such pass for this step, or width is 0.
  PassedNorm(StepContext& step, int64_t width);
  explicit operator bool() const { return room_.rank() == 2; }

  // The norm of x as a pass makes it, whose result stays until it is made again. Nothing if there
  // is no such pass.
  std::optional<InputNorm> as_input(StepContext& step, const TensorView& x, const RmsNorm& norm,
                                    const InputRounding& rounding) const;

 private:
  TensorView room_, codes_, scales_;
};

// The norms and the inputs of one pass: a norm or none.
class PassedInput {
 public:
  explicit PassedInput(const std::optional<InputNorm>& norm) : norm_(norm) {}
  std::span<const InputNorm> norms() const {
    return {norm_ ? &*norm_ : nullptr, norm_ ? size_t{1} : size_t{0}};
  }
  std::span<LinearInput> inputs() { return {&input_, norm_ ? size_t{1} : size_t{0}}; }
  // What the pass has made; empty if there is no norm.
  const LinearInput& input() const { return input_; }

 private:
  std::optional<InputNorm> norm_;
  LinearInput input_;
};

}  // namespace braid

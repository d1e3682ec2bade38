#include "layers/norm.h"

#include "layers/linear.h"
#include "ops/fused/prepared_input.h"
#include "ops/norm/rms_norm.h"

namespace braid {
namespace {

TensorView as_matrix(const TensorView& x) {
  if (x.rank() == 2) return x;
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.dim(i);
  return x.reshape({rows, x.dim(-1)});
}

}  // namespace

TensorView RmsNorm::run(StepContext& step, const TensorView& x) const {
  TensorView y = step.workspace.take(DType::kF32, x.shape());
  run_to(step, x, y);
  return y;
}

void RmsNorm::run_in_place(StepContext& step, const TensorView& x) const { run_to(step, x, x); }

void RmsNorm::run_to(StepContext& step, const TensorView& x, const TensorView& y) const {
  rms_norm(step.stream, as_matrix(x), weight_, epsilon_, as_matrix(y));
}

LinearInput RmsNorm::prepare(StepContext& step, const TensorView& x,
                             std::initializer_list<const Weight*> readers) const {
  return prepare_normed_input(step.stream, step.workspace, x, weight_, epsilon_,
                              input_rounding(step, readers));
}

void RmsNorm::add_to(StepContext& step, const TensorView& x, const TensorView& residual) const {
  add_rms_norm(step.stream, x, weight_, epsilon_, residual);
}

PassedNorm::PassedNorm(StepContext& step, int64_t width) {
  if (step.stream.is_cpu() || step.precision == ActivationPrecision::kF32 ||
      step.product_observer != nullptr || width == 0 || step.num_tokens() == 0) {
    return;
  }
  constexpr int64_t kMultiple = 64;
  room_ = step.workspace.take(DType::kBF16,
                              {step.num_tokens(), (width + kMultiple - 1) / kMultiple * kMultiple});
  if (step.precision != ActivationPrecision::kInt8) return;
  codes_ = step.workspace.take(DType::kI8, {step.num_tokens(), width});
  scales_ = step.workspace.take(DType::kF32, {step.num_tokens()});
}

std::optional<InputNorm> PassedNorm::as_input(StepContext& step, const TensorView& x,
                                              const RmsNorm& norm,
                                              const InputRounding& rounding) const {
  if (room_.rank() != 2 || !stays_in_room(step.stream, x, rounding)) return std::nullopt;
  InputNorm input = norm.as_input(rounding);
  input.room = room_;
  input.code_room = codes_;
  input.scale_room = scales_;
  return input;
}

}  // namespace braid

#include "ops/fused/prepared_input.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/fused/cuda/token_inputs.h"
#include "ops/norm/rms_norm.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

bool one_pass(const Stream& stream, const TensorView& x, ActivationPrecision precision) {
  return !stream.is_cpu() && precision != ActivationPrecision::kF32 && !x.empty();
}

void check_gated(const TensorView& gate, const TensorView& x) {
  BRAID_CHECK(gate.rank() == 2 && gate.shape() == x.shape(), "gate {}, times {}",
              to_string(gate.shape()), to_string(x.shape()));
}

OpWork gated_work(const TensorView& gate) {
  const double elements = static_cast<double>(gate.num_elements());
  return {.activation_bytes = 10 * elements, .operations = 12 * elements};
}

}  // namespace

LinearInput prepare_normed_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                 const TensorView& weight, float epsilon,
                                 const InputRounding& rounding) {
  BRAID_CHECK(x.rank() == 2, "x {}", to_string(x.shape()));
  if (one_pass(stream, x, rounding.precision)) {
    const OpScope op(stream, "normed_input", [&] {
      const double elements = static_cast<double>(x.num_elements());
      return OpWork{.activation_bytes = 6 * elements, .operations = 4 * elements};
    });
    return cuda::prepare_normed_input(stream, workspace, x, weight, epsilon, rounding);
  }
  const TensorView y = workspace.take(DType::kF32, x.shape());
  rms_norm(stream, x, weight, epsilon, y);
  return prepare_linear_input(stream, workspace, y, rounding);
}

LinearInput prepare_gated_input(Stream& stream, Workspace& workspace, Activation activation,
                                const TensorView& gate, const TensorView& up,
                                const InputRounding& rounding) {
  check_gated(gate, up);
  if (one_pass(stream, gate, rounding.precision)) {
    const OpScope op(stream, "gated_input", [&] { return gated_work(gate); });
    return cuda::prepare_gated_input(stream, workspace, activation, gate, up, rounding);
  }
  activate_and_multiply(stream, activation, gate, up, gate);
  return prepare_linear_input(stream, workspace, gate, rounding);
}

LinearInput prepare_sigmoid_gated_input(Stream& stream, Workspace& workspace,
                                        const TensorView& gate, const TensorView& x,
                                        const InputRounding& rounding) {
  check_gated(gate, x);
  if (one_pass(stream, gate, rounding.precision)) {
    const OpScope op(stream, "gated_input", [&] { return gated_work(gate); });
    return cuda::prepare_sigmoid_gated_input(stream, workspace, gate, x, rounding);
  }
  sigmoid_mul(stream, x, gate);
  return prepare_linear_input(stream, workspace, x, rounding);
}

LinearInput prepare_gated_norm_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                     const TensorView& gate, const TensorView& weight,
                                     float epsilon, const InputRounding& rounding) {
  BRAID_CHECK(x.rank() == 3 && x.shape() == gate.shape(), "x {}, gate {}", to_string(x.shape()),
              to_string(gate.shape()));
  const int64_t cols = x.dim(1) * x.dim(2);
  if (!stream.is_cpu() && !x.empty() && x.dim(2) == cuda::kGatedNormWidth &&
      cuda::takes_token_codes(stream, rounding, cols)) {
    const OpScope op(stream, "gated_norm_input", [&] {
      const double elements = static_cast<double>(x.num_elements());
      return OpWork{.activation_bytes = 9 * elements, .operations = 16 * elements};
    });
    return cuda::gated_norm_token_codes(stream, workspace, x, gate, weight, epsilon,
                                        rounding.scales.per_block);
  }
  gated_rms_norm(stream, x, gate, weight, epsilon, x);
  return prepare_linear_input(stream, workspace, x.reshape({x.dim(0), cols}), rounding);
}

}  // namespace braid

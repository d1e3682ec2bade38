#include "layers/linear.h"

#include "base/check.h"
#include "ops/linear/linear.h"
#include "tensor/cuda/stream_state.h"

namespace braid {

TensorView Linear::run(StepContext& step, const TensorView& x) const {
  return run(step, prepare_input(step, x, {&weight_}));
}

TensorView Linear::run(StepContext& step, const LinearInput& x) const {
  const TensorView y = step.workspace.take(DType::kF32, {x.x.dim(0), weight_.rows()});
  run_to(step, x, y);
  return y;
}

void Linear::observe(StepContext& step, const LinearInput& x) const {
  if (step.product_observer == nullptr) return;
  const std::string_view readers[] = {name_};
  step.product_observer->input(readers, observed_input(x));
}

void Linear::run_to(StepContext& step, const LinearInput& x, const TensorView& y) const {
  run_in_front(step, x, y, 0);
}

bool Linear::run_in_front(StepContext& step, const LinearInput& x, const TensorView& y,
                          int64_t next_bytes) const {
  observe(step, x);
  return linear_in_front(step.stream, weight_, x, y, next_bytes);
}

TensorView observed_input(const LinearInput& x) {
  BRAID_CHECK(x.token_codes.rank() == 0, "inputs of int8 codes cannot be observed");
  // On a device x is not what it was prepared from.
  if (x.x.device().is_cpu() || x.packed.empty()) return x.x;
  return x.packed.columns(0, x.x.dim(1));
}

void run_all(StepContext& step, const LinearInput& x, std::span<const Linear* const> matrices,
             std::span<TensorView> results) {
  const auto follows = [](const Weight& first, int64_t rows, const Weight& next) {
    return !next.empty() && next.format == first.format && next.cols() == first.cols() &&
           rows % first.format->panel_rows == 0 &&
           next.data == first.data + rows * first.row_bytes();
  };
  if (step.product_observer != nullptr) {
    std::vector<std::string_view> readers;
    for (const Linear* matrix : matrices) readers.push_back(matrix->name());
    step.product_observer->input(readers, observed_input(x));
  }
  for (size_t i = 0; i < matrices.size();) {
    if (matrices[i]->empty()) {
      results[i++] = {};
      continue;
    }
    Weight joined = matrices[i]->weight();
    int64_t rows = joined.rows();
    size_t end = i + 1;
    while (end < matrices.size() && follows(joined, rows, matrices[end]->weight())) {
      rows += matrices[end++]->weight().rows();
    }
    joined.shape = Shape{rows, joined.cols()};
    const TensorView y = step.workspace.take(DType::kF32, {x.x.dim(0), rows});
    linear(step.stream, joined, x, y);
    for (int64_t row = 0; i < end; ++i) {
      const int64_t count = matrices[i]->weight().rows();
      results[i] = y.columns(row, count);
      row += count;
    }
  }
}

namespace {

// On a CUDA device only weights of one scale a row take int8, others bfloat16.
InputRounding device_rounding(std::initializer_list<const Weight*> readers) {
  InputRounding rounding{.precision = ActivationPrecision::kInt8, .scales = {.per_block = false}};
  for (const Weight* reader : readers) {
    if (reader->empty()) continue;
    (reader->format->has_row_header() ? rounding.scales.per_token : rounding.scales.per_block) =
        true;
  }
  return rounding.scales.per_token ? rounding : InputRounding{ActivationPrecision::kBF16, {}};
}

}  // namespace

InputRounding input_rounding(const StepContext& step,
                             std::initializer_list<const Weight*> readers) {
  InputRounding rounding{.precision = step.precision};
  if (step.precision != ActivationPrecision::kInt8) return rounding;
  if (!step.stream.is_cpu()) return device_rounding(readers);
  rounding.scales = {.per_block = false};
  for (const Weight* reader : readers) {
    if (!reader->empty()) rounding.scales.add(*reader->format);
  }
  if (rounding.scales == Int8Scales{.per_block = false}) return {};
  return rounding;
}

namespace {

// bfloat16 instead of int8 on a CUDA device for up to so many tokens, unless deterministic.
InputRounding rounding_below(const StepContext& step, std::initializer_list<const Weight*> readers,
                             int64_t tokens) {
  const InputRounding rounding = input_rounding(step, readers);
  const bool few =
      !step.stream.is_cpu() && !step.stream.cuda().deterministic() && step.num_tokens() <= tokens;
  const bool int8 = rounding.precision == ActivationPrecision::kInt8;
  return few && int8 ? InputRounding{ActivationPrecision::kBF16, {}} : rounding;
}

}  // namespace

InputRounding gated_input_rounding(const StepContext& step,
                                   std::initializer_list<const Weight*> readers) {
  constexpr int64_t kFewTokens = 64;
  return rounding_below(step, readers, kFewTokens);
}

InputRounding made_input_rounding(const StepContext& step,
                                  std::initializer_list<const Weight*> readers) {
  constexpr int64_t kFewTokens = 8;
  return rounding_below(step, readers, kFewTokens);
}

LinearInput prepare_input(StepContext& step, const TensorView& x,
                          std::initializer_list<const Weight*> readers) {
  return prepare_linear_input(step.stream, step.workspace, x, input_rounding(step, readers));
}

}  // namespace braid

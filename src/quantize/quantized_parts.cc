#include "quantize/quantized_parts.h"

#include <cstring>
#include <memory>

#include "base/error.h"
#include "checkpoint/printable.h"
#include "quant/group_format.h"
#include "quantize/rounding.h"

namespace braid {
namespace {

constexpr int kCodesPerWord = 8;  // of 4 bits

using Bytes = std::vector<std::byte>;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

RoundedRows unpack(const TensorPlan& plan, const Weight& weight, const SingleMatrix& matrix) {
  const RoundingGrid grid = grid_of(plan);
  RoundedRows rows(grid, matrix.rows, plan.cols());
  for (int64_t r = 0; r < matrix.rows; ++r) {
    unpack_row(grid, weight.row(matrix.first_row + r), r, rows);
  }
  return rows;
}

// [rows, cols / 8], filled up with zeros.
std::vector<uint32_t> pack_along_rows(const RoundedRows& rounded) {
  const int64_t words = ceil_div(rounded.cols, kCodesPerWord);
  std::vector<uint32_t> packed(static_cast<size_t>(rounded.rows * words));
  for (int64_t r = 0; r < rounded.rows; ++r) {
    for (int64_t c = 0; c < rounded.cols; ++c) {
      packed[r * words + c / kCodesPerWord] |= uint32_t{rounded.codes[r * rounded.cols + c]}
                                               << (4 * (c % kCodesPerWord));
    }
  }
  return packed;
}

class CompressedTensorsMatrix {
 public:
  CompressedTensorsMatrix(const TensorPlan& plan, Weight weight, SingleMatrix matrix, int64_t stack)
      : plan_(plan), weight_(std::move(weight)), matrix_(std::move(matrix)), stack_(stack) {}

  std::vector<OutputTensors::Part> parts() const {
    const int64_t rows = matrix_.rows / std::max<int64_t>(stack_, 1), cols = plan_.cols();
    const RoundingGrid grid = grid_of(plan_);
    const int64_t groups = grid.groups(cols);
    const std::string& name = matrix_.name;
    if (plan_.format->id == FormatId::kW8C) {
      return {{name, DType::kI8, shape(rows, cols)},
              {name + "_scale", DType::kF32, shape(rows, 1)}};
    }
    std::vector<OutputTensors::Part> parts = {
        {name + "_packed", DType::kI32, shape(rows, ceil_div(cols, kCodesPerWord))},
        {name + "_scale", DType::kBF16, shape(rows, groups)},
        {name + "_shape", DType::kI64, Shape{stack_ > 0 ? 3 : 2}}};
    if (grid.zero == RoundingGrid::Zero::kChosen) {
      parts.push_back(
          {name + "_zero_point", DType::kI32, shape(ceil_div(rows, kCodesPerWord), groups)});
    }
    return parts;
  }

  std::vector<Bytes> make() const {
    const RoundedRows rounded = unpack(plan_, weight_, matrix_);
    if (plan_.format->id == FormatId::kW8C) {
      std::vector<int8_t> codes(rounded.codes.size());
      for (size_t i = 0; i < codes.size(); ++i) {
        codes[i] = static_cast<int8_t>(rounded.codes[i] - rounded.scales[0].zero);
      }
      std::vector<float> scales;
      for (const GroupScale& scale : rounded.scales) scales.push_back(scale.scale);
      return {bytes_of(codes), bytes_of(scales)};
    }
    std::vector<uint16_t> scales;
    for (const GroupScale& scale : rounded.scales) scales.push_back(to_bfloat16(scale.scale).bits);
    const int64_t matrices = std::max<int64_t>(stack_, 1), rows = rounded.rows / matrices;
    std::vector<int64_t> shape = {rows, rounded.cols};
    if (stack_ > 0) shape.insert(shape.begin(), stack_);
    std::vector<Bytes> result = {bytes_of(pack_along_rows(rounded)), bytes_of(scales),
                                 bytes_of(shape)};
    if (grid_of(plan_).zero == RoundingGrid::Zero::kChosen) {
      const int64_t words = ceil_div(rows, kCodesPerWord), groups = rounded.groups;
      std::vector<uint32_t> zeros(static_cast<size_t>(matrices * words * groups));
      for (int64_t m = 0; m < matrices; ++m) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t g = 0; g < groups; ++g) {
            const auto zero =
                static_cast<uint32_t>(rounded.scales[(m * rows + r) * groups + g].zero);
            zeros[(m * words + r / kCodesPerWord) * groups + g] |= zero
                                                                   << (4 * (r % kCodesPerWord));
          }
        }
      }
      result.push_back(bytes_of(zeros));
    }
    return result;
  }

 private:
  Shape shape(int64_t rows, int64_t cols) const {
    return stack_ > 0 ? Shape{stack_, rows, cols} : Shape{rows, cols};
  }

  const TensorPlan& plan_;
  Weight weight_;
  SingleMatrix matrix_;
  int64_t stack_;  // 0: a matrix
};

class GptqMatrix {
 public:
  GptqMatrix(const TensorPlan& plan, Weight weight, SingleMatrix matrix)
      : plan_(plan), weight_(std::move(weight)), matrix_(std::move(matrix)) {}

  std::vector<OutputTensors::Part> parts() const {
    const std::string module = matrix_.name.substr(0, matrix_.name.rfind('.'));
    const int64_t rows = matrix_.rows, cols = plan_.cols(), groups = grid_of(plan_).groups(cols);
    return {{module + ".qweight", DType::kI32, {cols / kCodesPerWord, rows}},
            {module + ".qzeros", DType::kI32, {groups, rows / kCodesPerWord}},
            {module + ".scales", DType::kF16, {groups, rows}},
            {module + ".g_idx", DType::kI32, {cols}}};
  }

  std::vector<Bytes> make() const {
    const RoundedRows rounded = unpack(plan_, weight_, matrix_);
    const int64_t rows = rounded.rows, cols = rounded.cols, groups = rounded.groups;
    const int64_t group = grid_of(plan_).group;
    std::vector<uint32_t> words(static_cast<size_t>(cols / kCodesPerWord * rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        words[c / kCodesPerWord * rows + r] |= uint32_t{rounded.codes[r * cols + c]}
                                               << (4 * (c % kCodesPerWord));
      }
    }
    const int64_t zero_words = rows / kCodesPerWord;
    std::vector<uint32_t> zeros(static_cast<size_t>(groups * zero_words));
    std::vector<uint16_t> scales(static_cast<size_t>(groups * rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        const GroupScale& scale = rounded.scales[r * groups + g];
        scales[g * rows + r] = to_float16(scale.scale).bits;
        zeros[g * zero_words + r / kCodesPerWord] |= static_cast<uint32_t>((scale.zero - 1) & 15)
                                                     << (4 * (r % kCodesPerWord));
      }
    }
    std::vector<int32_t> group_of(static_cast<size_t>(cols));
    for (int64_t c = 0; c < cols; ++c) group_of[c] = static_cast<int32_t>(c / group);
    return {bytes_of(words), bytes_of(zeros), bytes_of(scales), bytes_of(group_of)};
  }

 private:
  const TensorPlan& plan_;
  Weight weight_;
  SingleMatrix matrix_;
};

template <typename Matrix>
OutputTensors output_of(Matrix matrix) {
  const auto shared = std::make_shared<const Matrix>(std::move(matrix));
  return {.parts = shared->parts(), .make = [shared] { return shared->make(); }, .stored = {}};
}

}  // namespace

std::vector<SingleMatrix> single_matrices(const TensorPlan& plan) {
  if (plan.shape.rank() == 2) return {{plan.file_name, 0, plan.rows()}};
  std::vector<SingleMatrix> result;
  const std::string& name = plan.file_name;  // "….experts.gate_up_proj"
  const size_t dot = name.rfind('.');
  const std::string stem = name.substr(0, dot + 1), matrix = name.substr(dot + 1);
  const int64_t rows = plan.shape.dim(1);
  for (int64_t e = 0; e < plan.shape.dim(0); ++e) {
    if (matrix == "gate_up_proj") {
      result.push_back({fmt::format("{}{}.gate_proj.weight", stem, e), e * rows, rows / 2});
      result.push_back(
          {fmt::format("{}{}.up_proj.weight", stem, e), e * rows + rows / 2, rows / 2});
    } else {
      result.push_back({fmt::format("{}{}.{}.weight", stem, e, matrix), e * rows, rows});
    }
  }
  return result;
}

std::vector<OutputTensors> compressed_tensors_parts(const TensorPlan& plan, const Weight& weight,
                                                    bool split_experts) {
  if (plan.shape.rank() == 3 && !split_experts) {
    return {output_of(CompressedTensorsMatrix(plan, weight, {plan.file_name, 0, plan.rows()},
                                              plan.shape.dim(0)))};
  }
  std::vector<OutputTensors> result;
  for (SingleMatrix& matrix : single_matrices(plan)) {
    result.push_back(output_of(CompressedTensorsMatrix(plan, weight, std::move(matrix), 0)));
  }
  return result;
}

std::vector<OutputTensors> gptq_parts(const TensorPlan& plan, const Weight& weight) {
  if (!as_group_format(*plan.format)) {
    throw Error("{}: {} has no place in GPTQ files; use --format compressed-tensors",
                printable(plan.name), plan.format->name);
  }
  std::vector<OutputTensors> result;
  for (SingleMatrix& matrix : single_matrices(plan)) {
    if (matrix.rows % kCodesPerWord != 0) {
      throw Error(
          "{}: GPTQ files need rows in eights, this has {}; use --format "
          "compressed-tensors",
          printable(plan.name), matrix.rows);
    }
    result.push_back(output_of(GptqMatrix(plan, weight, std::move(matrix))));
  }
  return result;
}

}  // namespace braid

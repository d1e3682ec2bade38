#include "quantize/quantized_parts.h"

#include <algorithm>
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

constexpr int64_t kRowGrain = 16;

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Rows of a stored matrix, unpacked some at a time by all threads.
class StoredMatrix {
 public:
  StoredMatrix(const TensorPlan& plan, Weight weight, SingleMatrix matrix, ThreadPool& pool)
      : plan_(plan), weight_(std::move(weight)), matrix_(std::move(matrix)), pool_(pool) {}

 protected:
  const TensorPlan& plan() const { return plan_; }
  const SingleMatrix& matrix() const { return matrix_; }
  int64_t rows() const { return matrix_.rows; }
  int64_t cols() const { return plan_.cols(); }
  RoundingGrid grid() const { return grid_of(plan_); }

  // Calls visit(first, rows) for runs of rows of the matrix, from any thread.
  template <typename Visit>
  void for_rows(const Visit& visit) const {
    const RoundingGrid rows_grid = grid();
    pool_.parallel_for(rows(), kRowGrain, [&](int64_t begin, int64_t end, int) {
      RoundedRows some(rows_grid, end - begin, cols());
      for (int64_t r = begin; r < end; ++r) {
        unpack_row(rows_grid, weight_.row(matrix_.first_row + r), r - begin, some);
      }
      visit(begin, some);
    });
  }

 private:
  const TensorPlan& plan_;
  Weight weight_;
  SingleMatrix matrix_;
  ThreadPool& pool_;
};

// Eight codes; fewer at a row's end, filled up with zeros.
uint32_t word_of(const uint8_t* codes, int64_t count) {
  uint32_t word = 0;
  for (int64_t i = 0; i < count; ++i) word |= uint32_t{codes[i]} << (4 * i);
  return word;
}

class CompressedTensorsMatrix : public StoredMatrix {
 public:
  CompressedTensorsMatrix(const TensorPlan& plan, Weight weight, SingleMatrix matrix, int64_t stack,
                          ThreadPool& pool)
      : StoredMatrix(plan, std::move(weight), std::move(matrix), pool), stack_(stack) {}

  std::vector<OutputTensors::Part> parts() const {
    const int64_t rows = rows_of_one(), groups = grid().groups(cols());
    const std::string& name = matrix().name;
    if (of_bytes()) {
      return {{name, DType::kI8, shape(rows, cols())},
              {name + "_scale", DType::kF32, shape(rows, 1)}};
    }
    std::vector<OutputTensors::Part> parts = {
        {name + "_packed", DType::kI32, shape(rows, ceil_div(cols(), kCodesPerWord))},
        {name + "_scale", DType::kBF16, shape(rows, groups)},
        {name + "_shape", DType::kI64, Shape{stack_ > 0 ? 3 : 2}}};
    if (grid().zero == RoundingGrid::Zero::kChosen) {
      parts.push_back(
          {name + "_zero_point", DType::kI32, shape(ceil_div(rows, kCodesPerWord), groups)});
    }
    return parts;
  }

  std::vector<Bytes> make() const { return of_bytes() ? make_bytes() : make_words(); }

 private:
  bool of_bytes() const { return plan().format->id == FormatId::kW8C; }
  int64_t rows_of_one() const { return rows() / std::max<int64_t>(stack_, 1); }
  Shape shape(int64_t rows, int64_t cols) const {
    return stack_ > 0 ? Shape{stack_, rows, cols} : Shape{rows, cols};
  }

  std::vector<Bytes> make_bytes() const {
    Bytes codes(static_cast<size_t>(rows() * cols()));
    std::vector<float> scales(static_cast<size_t>(rows()));
    for_rows([&](int64_t first, const RoundedRows& some) {
      for (int64_t r = 0; r < some.rows; ++r) {
        scales[first + r] = some.scales[r].scale;
        const int zero = some.scales[r].zero;
        for (int64_t c = 0; c < cols(); ++c) {
          codes[(first + r) * cols() + c] =
              static_cast<std::byte>(some.codes[r * cols() + c] - zero);
        }
      }
    });
    return {std::move(codes), bytes_of(scales)};
  }

  std::vector<Bytes> make_words() const {
    const int64_t words = ceil_div(cols(), kCodesPerWord), groups = grid().groups(cols());
    Bytes packed(static_cast<size_t>(rows() * words) * sizeof(uint32_t));
    std::vector<uint16_t> scales(static_cast<size_t>(rows() * groups));
    std::vector<uint8_t> zeros(scales.size());
    for_rows([&](int64_t first, const RoundedRows& some) {
      std::vector<uint32_t> row(static_cast<size_t>(words));
      for (int64_t r = 0; r < some.rows; ++r) {
        const uint8_t* const codes = some.codes.data() + r * cols();
        const int64_t whole = cols() / kCodesPerWord;
        for (int64_t w = 0; w < whole; ++w) {
          row[w] = word_of(codes + w * kCodesPerWord, kCodesPerWord);
        }
        if (whole < words)
          row[whole] = word_of(codes + whole * kCodesPerWord, cols() % kCodesPerWord);
        std::memcpy(packed.data() + (first + r) * words * sizeof(uint32_t), row.data(),
                    row.size() * sizeof(uint32_t));
        for (int64_t g = 0; g < groups; ++g) {
          const GroupScale& scale = some.scales[r * groups + g];
          scales[(first + r) * groups + g] = to_bfloat16(scale.scale).bits;
          zeros[(first + r) * groups + g] = static_cast<uint8_t>(scale.zero);
        }
      }
    });
    const int64_t matrices = std::max<int64_t>(stack_, 1), one = rows_of_one();
    std::vector<int64_t> sizes = {one, cols()};
    if (stack_ > 0) sizes.insert(sizes.begin(), stack_);
    std::vector<Bytes> result = {std::move(packed), bytes_of(scales), bytes_of(sizes)};
    if (grid().zero != RoundingGrid::Zero::kChosen) return result;
    const int64_t zero_words = ceil_div(one, kCodesPerWord);
    std::vector<uint32_t> packed_zeros(static_cast<size_t>(matrices * zero_words * groups));
    for (int64_t m = 0; m < matrices; ++m) {
      for (int64_t r = 0; r < one; ++r) {
        for (int64_t g = 0; g < groups; ++g) {
          packed_zeros[(m * zero_words + r / kCodesPerWord) * groups + g] |=
              uint32_t{zeros[(m * one + r) * groups + g]} << (4 * (r % kCodesPerWord));
        }
      }
    }
    result.push_back(bytes_of(packed_zeros));
    return result;
  }

  int64_t stack_;  // 0: a matrix
};

class GptqMatrix : public StoredMatrix {
 public:
  using StoredMatrix::StoredMatrix;

  std::vector<OutputTensors::Part> parts() const {
    const std::string module = matrix().name.substr(0, matrix().name.rfind('.'));
    const int64_t groups = grid().groups(cols());
    return {{module + ".qweight", DType::kI32, {cols() / kCodesPerWord, rows()}},
            {module + ".qzeros", DType::kI32, {groups, rows() / kCodesPerWord}},
            {module + ".scales", DType::kF16, {groups, rows()}},
            {module + ".g_idx", DType::kI32, {cols()}}};
  }

  std::vector<Bytes> make() const {
    const int64_t num_words = cols() / kCodesPerWord, groups = grid().groups(cols());
    std::vector<uint32_t> words(static_cast<size_t>(num_words * rows()));
    const int64_t zero_words = rows() / kCodesPerWord;
    std::vector<uint32_t> zeros(static_cast<size_t>(groups * zero_words));
    std::vector<uint16_t> scales(static_cast<size_t>(groups * rows()));
    static_assert(kRowGrain % kCodesPerWord == 0, "a word of zeros belongs to one run of rows");
    for_rows([&](int64_t first, const RoundedRows& some) {
      for (int64_t r = 0; r < some.rows; ++r) {
        const int64_t row = first + r;
        const uint8_t* const codes = some.codes.data() + r * cols();
        for (int64_t w = 0; w < num_words; ++w) {
          words[w * rows() + row] = word_of(codes + w * kCodesPerWord, kCodesPerWord);
        }
        for (int64_t g = 0; g < groups; ++g) {
          const GroupScale& scale = some.scales[r * groups + g];
          scales[g * rows() + row] = to_float16(scale.scale).bits;
          zeros[g * zero_words + row / kCodesPerWord] |=
              static_cast<uint32_t>((scale.zero - 1) & 15) << (4 * (row % kCodesPerWord));
        }
      }
    });
    std::vector<int32_t> group_of(static_cast<size_t>(cols()));
    for (int64_t c = 0; c < cols(); ++c) group_of[c] = static_cast<int32_t>(c / grid().group);
    return {bytes_of(words), bytes_of(zeros), bytes_of(scales), bytes_of(group_of)};
  }
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
                                                    bool split_experts, ThreadPool& pool) {
  if (plan.shape.rank() == 3 && !split_experts) {
    return {output_of(CompressedTensorsMatrix(plan, weight, {plan.file_name, 0, plan.rows()},
                                              plan.shape.dim(0), pool))};
  }
  std::vector<OutputTensors> result;
  for (SingleMatrix& matrix : single_matrices(plan)) {
    result.push_back(output_of(CompressedTensorsMatrix(plan, weight, std::move(matrix), 0, pool)));
  }
  return result;
}

std::vector<OutputTensors> gptq_parts(const TensorPlan& plan, const Weight& weight,
                                      ThreadPool& pool) {
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
    result.push_back(output_of(GptqMatrix(plan, weight, std::move(matrix), pool)));
  }
  return result;
}

}  // namespace braid

#include "quantize/gguf_output.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "checkpoint/printable.h"
#include "quant/panels.h"
#include "quantize/block_rounding.h"

namespace braid {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int64_t kRowGrain = 16;

// Of a tensor that is kept: vectors and the like in float32, others as they are.
const QuantFormat* kept_format(const GgufTensor& tensor, const Weight& weight) {
  const bool wide = weight.format != nullptr && weight.format->plain() &&
                    (tensor.always_f32 || tensor.change != GgufTensor::Change::kNone);
  return wide ? &quant_format(FormatId::kF32) : weight.format;
}

void permute_runs(const std::vector<int64_t>& runs, int64_t run, const float* in, float* out) {
  for (size_t i = 0; i < runs.size(); ++i) {
    std::copy_n(in + runs[i] * run, run, out + static_cast<int64_t>(i) * run);
  }
}

void change(GgufTensor::Change change, float* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (change == GgufTensor::Change::kPlusOne) values[i] += 1;
    if (change == GgufTensor::Change::kMinusExponential) values[i] = -std::exp(values[i]);
  }
}

bool moves_columns(const GgufTensor& tensor) { return !tensor.column_runs.empty(); }

// Row after row of a tensor of the file, out of its sources' rows.
class RowMaker {
 public:
  RowMaker(const GgufTensor& tensor, const QuantFormat& format, std::vector<Weight> sources,
           bool columns_in_place)
      : tensor_(tensor),
        format_(format),
        sources_(std::move(sources)),
        cols_(tensor.shape.dim(-1)),
        moves_columns_(moves_columns(tensor) && !columns_in_place) {
    const Weight& first = sources_.front();
    rows_of_one_ = first.shape.num_elements() / cols_;
    same_ = first.format == &format && tensor.change == GgufTensor::Change::kNone;
  }

  void make(int64_t row, std::byte* out, std::vector<float>& a, std::vector<float>& b) const {
    if (tensor_.shape.rank() == 1 && !tensor_.rows.empty()) {
      make_vector(out, a, b);
      return;
    }
    int64_t from = tensor_.rows.empty() ? row : tensor_.rows[static_cast<size_t>(row)];
    const Weight& source = sources_[static_cast<size_t>(from / rows_of_one_)];
    from %= rows_of_one_;
    const int64_t row_bytes = format_.row_bytes(cols_);
    if (same_ && !source.format->panels() && !moves_columns_) {
      std::memcpy(out, source.data + from * row_bytes, static_cast<size_t>(row_bytes));
      return;
    }
    if (same_ && !source.format->panels() && tensor_.column_run % format_.block_elements == 0) {
      const int64_t run_bytes = tensor_.column_run / format_.block_elements * format_.block_bytes;
      for (size_t i = 0; i < tensor_.column_runs.size(); ++i) {
        std::memcpy(out + static_cast<int64_t>(i) * run_bytes,
                    source.data + from * row_bytes + tensor_.column_runs[i] * run_bytes,
                    static_cast<size_t>(run_bytes));
      }
      return;
    }
    a.resize(static_cast<size_t>(cols_));
    expand_row(source, from, a.data());
    if (moves_columns_) {
      b.resize(a.size());
      permute_runs(tensor_.column_runs, tensor_.column_run, a.data(), b.data());
      a.swap(b);
    }
    change(tensor_.change, a.data(), cols_);
    round_blocks(format_, a.data(), cols_, out);
  }

 private:
  void make_vector(std::byte* out, std::vector<float>& a, std::vector<float>& b) const {
    a.resize(static_cast<size_t>(cols_));
    b.resize(static_cast<size_t>(cols_));
    expand_row(sources_.front(), 0, b.data());
    for (size_t i = 0; i < a.size(); ++i) a[i] = b[static_cast<size_t>(tensor_.rows[i])];
    change(tensor_.change, a.data(), cols_);
    round_blocks(format_, a.data(), cols_, out);
  }

  const GgufTensor& tensor_;
  const QuantFormat& format_;
  std::vector<Weight> sources_;
  int64_t cols_, rows_of_one_ = 1;
  bool moves_columns_, same_ = false;
};

}  // namespace

void fit_plans_to_layout(const GgufLayout& layout, const WeightMap& weights,
                         std::vector<TensorPlan>& plans) {
  std::map<std::string_view, TensorPlan*> by_name;
  for (TensorPlan& plan : plans) by_name.emplace(plan.name, &plan);
  for (const GgufLayout::LeftOut& one : layout.left_out) {
    TensorPlan& plan = *by_name.at(one.name);
    plan.left_out = one.reason;
    plan.format = nullptr;
    plan.note.clear();
  }
  for (const GgufTensor& tensor : layout.tensors) {
    for (const std::string& name : tensor.sources) {
      TensorPlan& plan = *by_name.at(name);
      const TensorPlan& first = *by_name.at(tensor.sources.front());
      if (plan.format != first.format) {
        throw Error("{}: experts of a layer make one tensor of a GGUF file; store them alike",
                    printable(name));
      }
      plan.targets.push_back(tensor.name);
      if (tensor.always_f32) plan.format = nullptr;
      if (!plan.quantised()) {
        const Weight& weight = weights.find(name)->weight;
        if (weight.format == nullptr) {
          throw Error("{}: tensor {}: type {} cannot be written as GGUF", weights.origin(),
                      printable(name), plan.source_type);
        }
        if (weight.format != weights.find(tensor.sources.front())->weight.format) {
          throw Error(
              "{}: experts of a layer make one tensor of a GGUF file, but are stored in different "
              "types",
              printable(name));
        }
        const QuantFormat* kept = kept_format(tensor, weight);
        if (kept != weight.format) plan.kept_as = kept->name;
      } else if (moves_columns(tensor) && tensor.column_run % plan.format->block_elements != 0) {
        plan.column_runs = tensor.column_runs;
        plan.column_run = tensor.column_run;
      }
    }
  }
}

GgufOutput::GgufOutput(const GgufLayout& layout, const std::vector<TensorPlan>& plans,
                       const WeightMap& source,
                       const std::map<std::string, Weight, std::less<>>& quantised)
    : layout_(layout), source_(source), quantised_(quantised) {
  for (const TensorPlan& plan : plans) plans_.emplace(plan.name, &plan);
  for (const GgufTensor& tensor : layout.tensors) {
    const QuantFormat* format = &quant_format(FormatId::kF32);
    if (!tensor.sources.empty()) {
      const TensorPlan& plan = *plans_.at(tensor.sources.front());
      format = plan.quantised() ? plan.format
                                : kept_format(tensor, source.find(tensor.sources.front())->weight);
    }
    declarations_.push_back({tensor.name, format, tensor.shape});
  }
}

int64_t GgufOutput::bytes() const {
  int64_t sum = 0;
  for (const GgufWriter::Declaration& one : declarations_) sum += one.bytes();
  return sum;
}

std::vector<std::string> GgufOutput::added() const {
  std::vector<std::string> names;
  for (const GgufTensor& tensor : layout_.tensors) {
    if (tensor.sources.empty()) names.push_back(tensor.name);
  }
  return names;
}

GgufOutput::Source GgufOutput::source_of(const std::string& name) const {
  if (const auto found = quantised_.find(name); found != quantised_.end()) {
    return {found->second, plans_.at(name)->column_run != 0};
  }
  return {source_.find(name)->payload(), false};
}

void GgufOutput::write_tensor(const GgufTensor& tensor, const GgufWriter::Declaration& as,
                              ThreadPool& pool, GgufWriter& writer) const {
  if (tensor.sources.empty()) {
    writer.write(std::as_bytes(std::span(tensor.values)));
    return;
  }
  std::vector<Weight> sources;
  bool columns_in_place = false;
  for (const std::string& name : tensor.sources) {
    Source source = source_of(name);
    columns_in_place = source.columns_in_place;
    sources.push_back(std::move(source.weight));
  }
  const RowMaker maker(tensor, *as.format, std::move(sources), columns_in_place);
  const int64_t rows = tensor.shape.num_elements() / tensor.shape.dim(-1);
  const int64_t row_bytes = as.row_bytes();
  const int64_t piece_rows = std::clamp<int64_t>(kPieceBytes / row_bytes, 1, rows);
  std::vector<std::byte> piece(static_cast<size_t>(piece_rows * row_bytes));
  for (int64_t first = 0; first < rows; first += piece_rows) {
    const int64_t count = std::min(piece_rows, rows - first);
    pool.parallel_for(count, kRowGrain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> a, b;
      for (int64_t r = begin; r < end; ++r) {
        maker.make(first + r, piece.data() + r * row_bytes, a, b);
      }
    });
    writer.write(std::span(piece).first(static_cast<size_t>(count * row_bytes)));
  }
}

void GgufOutput::write(const std::filesystem::path& path, const GgufMetadataWriter& metadata,
                       ThreadPool& pool, const std::function<void()>& written) const {
  GgufWriter writer(path, metadata, declarations_);
  for (size_t i = 0; i < declarations_.size(); ++i) {
    write_tensor(layout_.tensors[i], declarations_[i], pool, writer);
    if (written) written();
  }
  writer.finish();
}

}  // namespace braid

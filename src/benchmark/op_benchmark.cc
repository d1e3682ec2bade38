#include "benchmark/op_benchmark.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <regex>

#include "base/error.h"
#include "ops/attention/attention.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/norm/rms_norm.h"
#include "quant/group_format.h"
#include "tensor/tensor.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kWorkspaceBytes = size_t{4} << 30;    // address space
constexpr int64_t kOperandBytes = int64_t{192} << 20;  // weights used in turn
constexpr double kCallSeconds = 0.05;                  // of a repetition, at least

Tensor random_tensor(const Shape& shape, float deviation, uint32_t seed) {
  Tensor tensor(DType::kF32, shape);
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  // A short stretch, repeated: what the values are does not change the time.
  std::vector<float> some(4099);
  for (float& x : some) x = normal(engine);
  const std::span<float> values = tensor.view().span<float>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = some[i % some.size()];
  return tensor;
}

// An op ready to be called again and again.
class OpCase {
 public:
  virtual ~OpCase() = default;
  virtual void call(Stream& stream, Workspace& workspace) = 0;
};

struct CaseMaker {
  std::string name;
  std::function<std::unique_ptr<OpCase>()> make;
};

class LinearCase : public OpCase {
 public:
  LinearCase(const QuantFormat& format, int64_t rows, int64_t cols, int64_t tokens)
      : rows_(rows), x_(random_tensor({tokens, cols}, 1, 2)) {
    const int64_t matrix_bytes = format.row_bytes(cols) * rows;
    copies_ = std::max<int64_t>(1, kOperandBytes / matrix_bytes);
    const auto storage =
        std::make_shared<Buffer>(static_cast<size_t>(matrix_bytes * copies_), Device{});
    fill(format, rows * copies_, cols, storage->data());
    weights_ = {.format = &format,
                .shape = {rows * copies_, cols},
                .data = storage->data(),
                .owner = storage};
  }
  void call(Stream& stream, Workspace& workspace) override {
    const ActivationPrecision precision =
        weights_.format->plain() ? ActivationPrecision::kF32 : ActivationPrecision::kInt8;
    Int8Scales scales{.per_block = false};
    scales.add(*weights_.format);
    const LinearInput input = prepare_linear_input(stream, workspace, x_, precision, scales);
    const TensorView y = workspace.take(DType::kF32, {x_.shape().dim(0), rows_});
    linear(stream, weights_.slice_rows(next_ * rows_, rows_), input, y);
    next_ = (next_ + 1) % copies_;
  }

 private:
  // A few rows of random values (formats that have no quantiser: of random bits, whose scales may
  // be any number), repeated.
  static void fill(const QuantFormat& format, int64_t rows, int64_t cols, std::byte* out) {
    constexpr int64_t kRows = 64;
    const auto row_bytes = static_cast<size_t>(format.row_bytes(cols));
    std::mt19937 engine(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t r = 0; r < rows; ++r, out += row_bytes) {
      if (r >= kRows) {
        std::memcpy(out, out - kRows * row_bytes, row_bytes);
      } else if (can_quantize(format)) {
        for (float& x : row) x = normal(engine);
        quantize(format, row.data(), cols, out);
      } else {
        for (size_t i = 0; i < row_bytes; ++i) out[i] = static_cast<std::byte>(engine() & 0x3f);
      }
    }
  }

  int64_t rows_;
  int64_t copies_ = 1;
  int64_t next_ = 0;
  Tensor x_;
  Weight weights_;
};

class AttentionCase : public OpCase {
 public:
  // `rows` new rows of each of `sequences` after `context` tokens.
  AttentionCase(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t sequences, int64_t rows,
                int64_t context, int64_t window)
      : options_{.scale = 0.06f, .window = window},
        q_(random_tensor({sequences * rows, heads, head_dim}, 1, 1)),
        out_(DType::kF32, {sequences * rows, heads, head_dim}) {
    constexpr int64_t kPageTokens = 32;
    const int64_t pages_each = (context + rows + kPageTokens - 1) / kPageTokens;
    const Shape shape{sequences * pages_each, kv_heads, kPageTokens, head_dim};
    keys_ = Tensor(DType::kBF16, shape);
    values_ = Tensor(DType::kBF16, shape);
    for (const Tensor* tensor : {&keys_, &values_}) {
      const std::span<BFloat16> all = tensor->view().span<BFloat16>();
      for (size_t i = 0; i < all.size(); ++i) {
        all[i] = to_bfloat16(0.01f * static_cast<float>(i % 199) - 1);
      }
    }
    pages_.resize(static_cast<size_t>(sequences * pages_each));
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = static_cast<int32_t>(i);
    for (int64_t s = 0; s < sequences; ++s) {
      sequences_.push_back({s * rows, rows, context,
                            std::span(pages_).subspan(static_cast<size_t>(s * pages_each),
                                                      static_cast<size_t>(pages_each))});
    }
  }
  void call(Stream& stream, Workspace& workspace) override {
    attention(stream, workspace, q_, {keys_, values_}, sequences_, options_, out_);
  }

 private:
  AttentionOptions options_;
  Tensor q_, out_, keys_, values_;
  std::vector<int32_t> pages_;
  std::vector<SequenceRows> sequences_;
};

class GatedDeltaCase : public OpCase {
 public:
  // Qwen3-Next: 16 key heads and 32 value heads of 128.
  GatedDeltaCase(int64_t sequences, int64_t rows)
      : mixed_(random_tensor({sequences * rows, 2 * kKeys + kValues}, 1, 1)),
        gates_(random_tensor({sequences * rows, 2 * kValueHeads}, 1, 2)),
        rate_(random_tensor({kValueHeads}, 0.01f, 3)),
        bias_(random_tensor({kValueHeads}, 1, 4)),
        out_(DType::kF32, {sequences * rows, kValueHeads, kDim}),
        states_(random_tensor({sequences, kValueHeads, kDim, kDim}, 0.1f, 5)),
        conv_rows_(DType::kF32, {sequences, 3, 2 * kKeys + kValues}),
        logged_keys_(DType::kF32, {sequences, 1, kKeyHeads, kDim}),
        logged_updates_(DType::kF32, {sequences, 1, kValueHeads, kDim}),
        logged_decays_(DType::kF32, {sequences, 1, kValueHeads}) {
    for (float& x : rate_.view().span<float>()) x = -std::abs(x);
    const int64_t tokens = sequences * rows;
    const TensorView x = mixed_.view();
    inputs_ = {x.columns(0, kKeys).reshape({tokens, kKeyHeads, kDim}),
               x.columns(kKeys, kKeys).reshape({tokens, kKeyHeads, kDim}),
               x.columns(2 * kKeys, kValues).reshape({tokens, kValueHeads, kDim}),
               gates_.view().columns(0, kValueHeads),
               gates_.view().columns(kValueHeads, kValueHeads),
               rate_,
               bias_};
    layer_ = {states_, conv_rows_, logged_keys_, logged_updates_, logged_decays_};
    for (int64_t s = 0; s < sequences; ++s) {
      sequences_.push_back(
          {.first_row = s * rows, .num_rows = rows, .slot = static_cast<int32_t>(s)});
    }
  }
  void call(Stream& stream, Workspace& workspace) override {
    gated_delta(stream, workspace, inputs_, layer_, sequences_, {}, out_);
  }

 private:
  static constexpr int64_t kKeyHeads = 16, kValueHeads = 32, kDim = 128;
  static constexpr int64_t kKeys = kKeyHeads * kDim, kValues = kValueHeads * kDim;

  Tensor mixed_, gates_, rate_, bias_, out_;
  Tensor states_, conv_rows_, logged_keys_, logged_updates_, logged_decays_;
  GatedDeltaInputs inputs_;
  RecurrentLayer layer_;
  std::vector<RecurrentRows> sequences_;
};

class NormCase : public OpCase {
 public:
  NormCase(int64_t tokens, int64_t width)
      : x_(random_tensor({tokens, width}, 1, 1)),
        weight_(random_tensor({width}, 1, 2)),
        y_(DType::kF32, {tokens, width}) {}
  void call(Stream& stream, Workspace&) override { rms_norm(stream, x_, weight_, 1e-6f, y_); }

 private:
  Tensor x_, weight_, y_;
};

template <typename Case, typename... Args>
CaseMaker maker(std::string name, Args... args) {
  return {std::move(name), [args...] { return std::make_unique<Case>(args...); }};
}

std::vector<CaseMaker> all_cases() {
  std::vector<CaseMaker> cases;
  struct Matrix {
    int64_t rows, cols;
  };
  // An MLP of Gemma 4 12B, an expert of the 26B, a narrow model's MLP.
  constexpr Matrix kMatrices[] = {{15360, 3840}, {2816, 704}, {2048, 640}};
  for (const Matrix& matrix : kMatrices) {
    for (int id = 0; id < kNumFormats; ++id) {
      const QuantFormat& format = quant_format(static_cast<FormatId>(id));
      if (matrix.cols % format.block_elements != 0) continue;
      // As fast as their like with bfloat16 scales.
      if (const auto groups = as_group_format(format); groups && groups->f32_scales) continue;
      for (const int64_t tokens : {1, 2, 4, 8, 64, 512}) {
        cases.push_back(maker<LinearCase>(
            fmt::format("linear {} {}x{} n{}", format.name, matrix.rows, matrix.cols, tokens),
            std::cref(format), matrix.rows, matrix.cols, tokens));
      }
    }
  }
  const auto add_attention = [&](const char* shape, int64_t heads, int64_t kv_heads, int64_t dim,
                                 int64_t window) {
    const std::string name = fmt::format("attention {} {}/{}x{}", shape, heads, kv_heads, dim);
    cases.push_back(maker<AttentionCase>(name + " decode b1 at 4096", heads, kv_heads, dim,
                                         int64_t{1}, int64_t{1}, int64_t{4096}, window));
    cases.push_back(maker<AttentionCase>(name + " decode b8 at 4096", heads, kv_heads, dim,
                                         int64_t{8}, int64_t{1}, int64_t{4096}, window));
    cases.push_back(maker<AttentionCase>(name + " prefill 512 at 0", heads, kv_heads, dim,
                                         int64_t{1}, int64_t{512}, int64_t{0}, window));
    cases.push_back(maker<AttentionCase>(name + " prefill 512 at 4096", heads, kv_heads, dim,
                                         int64_t{1}, int64_t{512}, int64_t{4096}, window));
  };
  add_attention("full", 16, 1, 512, 0);
  add_attention("sliding 1024", 16, 8, 256, 1024);
  add_attention("full", 16, 2, 256, 0);
  for (const int64_t sequences : {1, 8, 32}) {
    cases.push_back(maker<GatedDeltaCase>(fmt::format("gated_delta decode b{}", sequences),
                                          sequences, int64_t{1}));
  }
  for (const int64_t rows : {64, 512}) {
    cases.push_back(
        maker<GatedDeltaCase>(fmt::format("gated_delta prefill {}", rows), int64_t{1}, rows));
  }
  cases.push_back(maker<GatedDeltaCase>("gated_delta prefill 8 x 64", int64_t{8}, int64_t{64}));
  for (const int64_t tokens : {1, 512}) {
    cases.push_back(
        maker<NormCase>(fmt::format("rms_norm 3840 n{}", tokens), tokens, int64_t{3840}));
  }
  return cases;
}

std::vector<CaseMaker> matching_cases(const std::string& filter) {
  std::vector<CaseMaker> cases = all_cases();
  if (filter.empty()) return cases;
  std::regex pattern;
  try {
    pattern = std::regex(filter);
  } catch (const std::regex_error& error) {
    throw UsageError("--filter '{}': {}", filter, error.what());
  }
  std::erase_if(cases,
                [&](const CaseMaker& each) { return !std::regex_search(each.name, pattern); });
  if (cases.empty()) throw UsageError("--filter '{}': no case matches", filter);
  return cases;
}

double seconds_of_call(OpCase& op, Stream& stream, Workspace& workspace) {
  Workspace::Scope scope(workspace);
  const auto begin = Clock::now();
  op.call(stream, workspace);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The fastest of the calls that fit into kCallSeconds, three at least.
double best_call(OpCase& op, Stream& stream, Workspace& workspace) {
  double best = 1e30, sum = 0;
  for (int calls = 0; calls < 3 || sum < kCallSeconds; ++calls) {
    const double seconds = seconds_of_call(op, stream, workspace);
    best = std::min(best, seconds);
    sum += seconds;
  }
  return best;
}

}  // namespace

std::vector<std::string> op_case_names() {
  std::vector<std::string> names;
  for (const CaseMaker& each : all_cases()) names.push_back(each.name);
  return names;
}

std::vector<BenchRow> run_op_benchmark(const OpBenchmarkOptions& options,
                                       const BenchProgressFunction& progress) {
  const std::vector<CaseMaker> cases = matching_cases(options.filter);
  std::vector<std::unique_ptr<ThreadPool>> pools;
  for (const int threads : options.threads) {
    pools.push_back(std::make_unique<ThreadPool>(ThreadPoolOptions{.num_threads = threads}));
  }
  Workspace workspace(kWorkspaceBytes);
  std::vector<BenchRow> rows;
  const auto total = static_cast<int64_t>(cases.size());
  const auto start = Clock::now();
  // Operands are large: one case's at a time.
  for (int64_t i = 0; i < total; ++i) {
    const double spent = std::chrono::duration<double>(Clock::now() - start).count();
    if (progress) {
      const double left =
          i == 0 ? -1 : spent / static_cast<double>(i) * static_cast<double>(total - i);
      progress({i, total, left, cases[i].name});
    }
    const std::unique_ptr<OpCase> op = cases[i].make();
    const size_t first = rows.size();
    for (const auto& pool : pools) {
      Stream stream(*pool);
      BenchRow row;
      row.test = cases[i].name;
      row.phase = "op";
      row.threads = pool->num_threads();
      seconds_of_call(*op, stream, workspace);
      Profiler profiler;
      stream.set_profiler(&profiler);
      seconds_of_call(*op, stream, workspace);
      row.work = profiler.total();
      row.ops = op_results(profiler);
      rows.push_back(std::move(row));
    }
    for (int repetition = 0; repetition < options.repetitions; ++repetition) {
      for (size_t p = 0; p < pools.size(); ++p) {
        Stream stream(*pools[p]);
        rows[first + p].seconds.push_back(best_call(*op, stream, workspace));
      }
    }
  }
  return rows;
}

}  // namespace braid

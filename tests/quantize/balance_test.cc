#include "quantize/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "models/registry.h"
#include "quantize/inputs.h"
#include "quantize/model_values.h"
#include "quantize/quantizer.h"
#include "quantize/routing.h"
#include "quantize/source.h"
#include "support/fresh_seed.h"
#include "support/temp_folder.h"
#include "tensor/buffer.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of_folder;
using testing::demo;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::logits_of;
using testing::tiny;
using testing::values_of;

constexpr size_t kWorkspaceBytes = size_t{1} << 32;

ModelFiles open(const fs::path& path) { return open_source(path, {}, /*fill=*/true); }

CalibrationTokens random_tokens(testing::FreshRandom& random) {
  return testing::random_tokens(96, 3, 24, random);
}

std::vector<BalancedGroup> balance(ModelFiles& files, const CalibrationTokens& tokens,
                                   double strength) {
  ThreadPool pool({.num_threads = 2});
  Stream stream(pool);
  Workspace workspace(kWorkspaceBytes);
  PhaseTimes times;
  const QuantizeOptions options;
  LayerCalibration layers(files, tokens, stream, workspace, options, times);
  return balance_source(files, layers, stream, strength, [](int64_t) {});
}

// By hand: logarithms of scales 0, 2, –, 2 and 0, 4, –, 2, less their means.
TEST(BalanceExponents, AreThoseOfTheFormula) {
  const std::vector<float> inputs = {1, 16, 0, 4, 7}, weights = {1, 1, 5, 0.25f, 0};
  EXPECT_THAT(balance_exponents(inputs, weights, 0.5), ElementsAre(-1, 1, 0, 1, 0));
  EXPECT_THAT(balance_exponents(inputs, weights, 1), ElementsAre(-2, 2, 0, 0, 0));
  const std::vector<float> far = {0x1p-60f, 0x1p60f}, ones = {1, 1};
  EXPECT_THAT(balance_exponents(far, ones, 1), ElementsAre(-12, 12));
  const std::vector<float> none = {0, 0};
  EXPECT_THAT(balance_exponents(none, ones, 0.5), ElementsAre(0, 0));
}

// Σ (y − ŷ)² of Y = X·Wᵀ, with X and W rounded to int8, a scale for each row.
double int8_error(std::vector<float> x, std::vector<float> w, int64_t cols) {
  const auto rounded = [&](std::vector<float> m) {
    for (size_t at = 0; at < m.size(); at += cols) {
      float largest = 0;
      for (int64_t c = 0; c < cols; ++c) largest = std::max(largest, std::abs(m[at + c]));
      const float scale = largest / 127;
      for (int64_t c = 0; c < cols; ++c) m[at + c] = std::round(m[at + c] / scale) * scale;
    }
    return m;
  };
  const std::vector<float> xq = rounded(x), wq = rounded(w);
  double error = 0;
  for (size_t i = 0; i < x.size(); i += cols) {
    for (size_t j = 0; j < w.size(); j += cols) {
      double y = 0, yq = 0;
      for (int64_t c = 0; c < cols; ++c) {
        y += double{x[i + c]} * w[j + c];
        yq += double{xq[i + c]} * wq[j + c];
      }
      error += (y - yq) * (y - yq);
    }
  }
  return error;
}

// Without balancing, all inputs of a token share the step of the outlier, 64 times what they need;
// with half of it in the weights both have steps 8 times that at most: a quarter of the error, with
// room, where the formula gives about a 32nd.
TEST(BalanceExponents, TakeOutliersToTheWeights) {
  testing::FreshRandom random;
  std::normal_distribution<float> normal;
  constexpr int64_t kCols = 64, kRows = 48, kTokens = 40;
  std::vector<float> x(kTokens * kCols), w(kRows * kCols);
  for (float& v : x) v = normal(random.engine());
  for (float& v : w) v = normal(random.engine());
  for (int64_t t = 0; t < kTokens; ++t) x[t * kCols + 5] *= 64;
  std::vector<float> inputs(kCols), weights(kCols);
  for (size_t i = 0; i < x.size(); ++i) {
    inputs[i % kCols] = std::max(inputs[i % kCols], std::abs(x[i]));
  }
  for (size_t i = 0; i < w.size(); ++i) {
    weights[i % kCols] = std::max(weights[i % kCols], std::abs(w[i]));
  }
  const std::vector<int> exponents = balance_exponents(inputs, weights, 0.5);
  std::vector<float> balanced_x = x, balanced_w = w;
  for (size_t i = 0; i < x.size(); ++i) balanced_x[i] = std::ldexp(x[i], -exponents[i % kCols]);
  for (size_t i = 0; i < w.size(); ++i) balanced_w[i] = std::ldexp(w[i], exponents[i % kCols]);
  EXPECT_LT(int8_error(balanced_x, balanced_w, kCols), 0.25 * int8_error(x, w, kCols));
}

struct ModelCase {
  fs::path path;
  bool offset;  // gains are stored minus one: those of the balanced model are rounded
};
std::vector<ModelCase> models() {
  std::vector<ModelCase> cases;
  for (const char* name : {"gemma3", "gemma3_linear", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_split",
                           "qwen3_next", "qwen3_next_mixed"}) {
    cases.push_back({tiny(name), true});
  }
  for (const char* name : {"gemma4_dense", "gemma4_e2b", "gemma4_e4b", "gemma4_moe",
                           "gguf/gemma3_f32.gguf", "gguf/gemma4_moe_bf16.gguf",
                           "gguf/qwen3_5_mtp_bf16.gguf", "gguf/qwen3_next_mtp_bf16.gguf"}) {
    cases.push_back({tiny(name), false});
  }
  cases.push_back({demo("gemma4-dense"), false});
  cases.push_back({demo("gemma4"), false});
  cases.push_back({demo("qwen3next"), true});
  return cases;
}

class BalanceTest : public ::testing::TestWithParam<ModelCase> {
 protected:
  testing::FreshRandom random_;
};

// Powers of two change no bit of a product's result. Where gains have an offset, each is rounded
// once: relative errors of 2^-24 / gain, and sums of `width` products whose terms differ so, in
// each layer.
TEST_P(BalanceTest, TheModelStaysTheSame) {
  const CalibrationTokens tokens = random_tokens(random_);
  ModelFiles source = open(GetParam().path), balanced = open(GetParam().path);
  const std::vector<BalancedGroup> groups = balance(balanced, tokens, 0.75);
  int64_t scaled = 0;
  double gain_error = 0;
  for (const BalancedGroup& group : groups) {
    scaled += group.scaled;
    EXPECT_LE(group.scaled, group.channels);
    if (group.scaled == 0) continue;
    std::vector<std::string> changed = group.readers;
    changed.push_back(group.before);
    for (const std::string& name : changed) {
      const Weight& now = balanced.weights().find(name)->weight;
      const Weight& then = source.weights().find(name)->weight;
      EXPECT_EQ(now.shape, then.shape) << name;
      EXPECT_NE(values_of(now), values_of(then)) << name;
    }
    const Weight& before = balanced.weights().find(group.before)->weight;
    if (!GetParam().offset || before.shape.rank() != 1) continue;
    for (const float w : values_of(before)) {
      const double gain = std::abs(1.0 + w);
      if (gain > 0) gain_error = std::max(gain_error, 0x1p-24 * std::abs(w) / gain + 0x1p-24);
    }
  }
  EXPECT_GT(scaled, 0);

  const std::unique_ptr<Model> model = load_model(source), other = load_model(balanced);
  if (!GetParam().offset) {
    const std::vector<int32_t>& ids = tokens.sequences[0];
    const std::vector<float> expected = logits_of(*model, ids), logits = logits_of(*other, ids);
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_EQ(0, std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)));
    return;
  }
  const auto layers = static_cast<double>(model->num_layers());
  const auto width = static_cast<double>(model->hidden_size());
  const double room = layers * (gain_error + width * 0x1p-24);
  // A rounding may send a token to another expert where two are equally good.
  std::vector<int32_t> ids;
  do {
    ids = random_tokens(random_).sequences[0];
  } while (!testing::same_routing(testing::routing_of(source, *model, ids),
                                  testing::routing_of(balanced, *other, ids), room) &&
           !HasFailure());
  const std::vector<float> expected = logits_of(*model, ids), logits = logits_of(*other, ids);
  ASSERT_EQ(logits.size(), expected.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    difference = std::max(difference, std::abs(double{logits[i]} - expected[i]));
  }
  EXPECT_LE(difference, room * largest);
}

INSTANTIATE_TEST_SUITE_P(Models, BalanceTest, ::testing::ValuesIn(models()), [](const auto& info) {
  std::string name =
      info.param.path.parent_path().filename().string() + "_" + info.param.path.filename().string();
  for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
  return name;
});

class LargestInputs : public StepContext::ProductObserver {
 public:
  void input(std::span<const std::string_view> readers, const TensorView& x) override {
    for (const std::string_view reader : readers) {
      std::vector<float>& sizes = by_reader[std::string(reader)];
      sizes.resize(static_cast<size_t>(x.dim(1)));
      for (int64_t r = 0; r < x.dim(0); ++r) {
        for (int64_t c = 0; c < x.dim(1); ++c) {
          const float size = std::abs(x.data<float>()[r * x.row_stride() + c]);
          sizes[c] = std::max(sizes[c], size);
        }
      }
    }
  }
  void expert_input(std::span<const std::string_view>, const TensorView&,
                    const TensorView&) override {}

  std::map<std::string, std::vector<float>> by_reader;
};

// Each tensor is what the plain formula makes of it, from inputs observed here.
TEST(Balance, ScalesAreThoseOfTheInputs) {
  testing::FreshRandom random;
  const CalibrationTokens tokens = random_tokens(random);
  const fs::path path = tiny("gguf/gemma3_f32.gguf");
  ModelFiles source = open(path), balanced = open(path);
  const std::vector<BalancedGroup> groups = balance(balanced, tokens, 0.5);

  ThreadPool pool({.num_threads = 2});
  Stream stream(pool);
  Workspace workspace(kWorkspaceBytes);
  const std::unique_ptr<Model> model = load_model(source);
  CalibrationPass pass(*model, tokens, stream, workspace, ActivationPrecision::kF32);
  pass.embed();
  LargestInputs inputs;
  for (int64_t layer = 0; layer < model->num_layers(); ++layer) {
    pass.observe_layer(layer, inputs);
    pass.run_layer(layer);
  }
  ASSERT_EQ(groups.size(), static_cast<size_t>(3 * model->num_layers()));

  std::map<std::string, std::vector<int>> columns, rows;
  for (const BalancedGroup& group : groups) {
    const std::vector<float>& x = inputs.by_reader.at(group.readers[0]);
    const size_t cols = x.size();
    std::vector<float> weights(cols);
    for (const std::string& reader : group.readers) {
      const std::vector<float> w = values_of(source.weights().find(reader)->weight);
      for (size_t at = 0; at < w.size(); ++at) {
        weights[at % cols] = std::max(weights[at % cols], std::abs(w[at]));
      }
    }
    const std::vector<int> exponents = balance_exponents(x, weights, 0.5);
    for (const std::string& reader : group.readers) columns[reader] = exponents;
    rows[group.before] = exponents;
  }
  for (const auto& [name, tensor] : source.weights().tensors()) {
    std::vector<float> expected = values_of(tensor.weight);
    const int64_t cols = tensor.weight.cols();
    for (size_t i = 0; i < expected.size(); ++i) {
      const size_t row = tensor.weight.shape.rank() == 1 ? i : i / cols;
      if (columns.contains(name)) expected[i] = std::ldexp(expected[i], columns[name][i % cols]);
      if (rows.contains(name)) expected[i] = std::ldexp(expected[i], -rows[name][row]);
    }
    ASSERT_EQ(values_of(balanced.weights().find(name)->weight), expected) << name;
  }
}

// In place of a tensor: values of any format, rounded.
void put(WeightMap& weights, const std::string& name, const std::vector<float>& values,
         const char* format_name) {
  StoredTensor tensor = *weights.find(name);
  const QuantFormat& format = *find_quant_format(format_name);
  const int64_t cols = tensor.weight.cols(), row_bytes = format.row_bytes(cols);
  const int64_t rows = tensor.weight.shape.num_elements() / cols;
  auto memory = std::make_shared<Buffer>(static_cast<size_t>(rows * row_bytes), Device());
  for (int64_t r = 0; r < rows; ++r) {
    quantize(format, values.data() + r * cols, cols, memory->data() + r * row_bytes);
  }
  tensor.weight.format = &format;
  tensor.weight.data = memory->data();
  tensor.weight.owner = memory;
  tensor.dtype_name = format.name;
  weights.remove(name);
  weights.add(std::move(tensor));
}

// Two channels of each norm's outputs are 64 times what they were, and the matrices that read them
// take that back: a model that is the same, but not in int8.
void plant_outliers(WeightMap& weights) {
  const WeightMap source = weights;
  for (const auto& [name, tensor] : source.tensors()) {
    const auto is = [&name = name](const char* module) { return name.find(module) != name.npos; };
    const bool gain = is(".input_layernorm.") || is(".pre_feedforward_layernorm.");
    const bool reads =
        is(".q_proj.") || is(".k_proj.") || is(".v_proj.") || is(".gate_proj.") || is(".up_proj.");
    if (!gain && !reads) continue;
    std::vector<float> values = values_of(tensor.weight);
    const auto cols = static_cast<size_t>(tensor.weight.cols());
    for (const size_t channel : {3, 77}) {
      for (size_t at = channel; at < values.size(); at += cols) values[at] *= gain ? 64 : 1.0f / 64;
    }
    put(weights, name, values, "f32");
  }
}

// Of logits, with matrices and their inputs in int8.
double w8a8_error(ModelFiles& files, const std::vector<int32_t>& ids,
                  const std::vector<float>& expected) {
  const WeightMap source = files.weights();
  for (const auto& [name, tensor] : source.tensors()) {
    if (!name.starts_with("layers.") || tensor.weight.shape.rank() != 2) continue;
    put(files.weights(), name, values_of(tensor.weight), "w8c");
  }
  const std::vector<float> logits =
      logits_of(*load_model(files), ids, {.precision = ActivationPrecision::kInt8});
  double error = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    error += std::pow(double{logits[i]} - expected[i], 2);
  }
  return error;
}

TEST(Balance, SavesModelsWithOutliers) {
  testing::FreshRandom random;
  const CalibrationTokens tokens = random_tokens(random);
  const std::vector<int32_t>& ids = tokens.sequences[1];
  const fs::path path = demo("gemma4-dense");
  ModelFiles source = open(path), planted = open(path), balanced = open(path);
  const std::vector<float> expected = logits_of(*load_model(source), ids);
  plant_outliers(planted.weights());
  plant_outliers(balanced.weights());
  balance(balanced, tokens, 0.5);
  const double without = w8a8_error(planted, ids, expected);
  const double with = w8a8_error(balanced, ids, expected);
  EXPECT_LT(with, 0.25 * without);
  RecordProperty("ratio", std::to_string(with / without));
}

// An interrupted run goes on to the same bytes, by other threads too; one of another strength does
// not take its layers.
TEST(Balance, GoesOnWhereItStopped) {
  testing::FreshRandom random;
  const CalibrationTokens tokens = random_tokens(random);
  const testing::TempFolder folder;
  ThreadPool one({.num_threads = 1}), three({.num_threads = 3});
  QuantizeOptions options{
      .recipe = {.scheme = "w8a8"}, .method = QuantizeMethod::kNearest, .balance = 0.5};
  const fs::path model = demo("gemma4-dense"), out = folder.path() / "out";
  const auto quantise = [&](const fs::path& to, ThreadPool& pool, double strength) {
    QuantizeOptions other = options;
    other.balance = strength;
    return quantize_model(model, to, tokens, pool, other);
  };
  const auto stop = [](const QuantizeProgress& progress) {
    if (progress.phase == "layer 3 of 8") throw Error("stopped");
  };
  quantise(folder.path() / "whole", one, 0.5);
  options.progress = stop;
  EXPECT_THROW(quantise(out, three, 0.5), Error);
  options.progress = nullptr;
  EXPECT_EQ(quantise(out, three, 0.5).times.layers_resumed, 2);
  EXPECT_EQ(bytes_of_folder(out), bytes_of_folder(folder.path() / "whole"));

  options.progress = stop;
  EXPECT_THROW(quantise(folder.path() / "plain", three, 0.5), Error);
  options.progress = nullptr;
  EXPECT_EQ(quantise(folder.path() / "plain", three, 0).times.layers_resumed, 0);
  EXPECT_NE(bytes_of_folder(folder.path() / "plain"), bytes_of_folder(out));
}

TEST(Balance, RefusesWhatItCannotDo) {
  testing::FreshRandom random;
  const CalibrationTokens tokens = random_tokens(random);
  const testing::TempFolder folder;
  ThreadPool pool({.num_threads = 1});
  const auto error_of = [&](const CalibrationTokens& text, const QuantizeOptions& options) {
    try {
      quantize_model(demo("gemma4-dense"), folder.path() / "out", text, pool, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const double strength : {-0.5, 1.25, std::nan("")}) {
    EXPECT_THAT(error_of(tokens, {.balance = strength}), HasSubstr("from 0 to 1")) << strength;
  }
  EXPECT_THAT(error_of({}, {.method = QuantizeMethod::kNearest, .balance = 0.5}),
              HasSubstr("needs calibration text"));
  EXPECT_THAT(error_of(tokens, {.balance = 0.5, .file_format = QuantizedFileFormat::kGguf}),
              HasSubstr("only models for folders"));
}

// What reads an input along with experts is not balanced; the shared expert's own width is.
TEST(Balance, LeavesExpertsAlone) {
  testing::FreshRandom random;
  ModelFiles files = open(tiny("qwen3_next"));
  for (const BalancedGroup& group : balance(files, random_tokens(random), 0.5)) {
    EXPECT_EQ(group.before.find("post_attention_layernorm"), group.before.npos) << group.before;
    EXPECT_EQ(group.before.find(".experts."), group.before.npos) << group.before;
  }
}

}  // namespace
}  // namespace braid

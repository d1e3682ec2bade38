#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "quantize/inputs.h"
#include "quantize/model_values.h"
#include "quantize/quantizer.h"
#include "quantize/source.h"
#include "support/fresh_seed.h"
#include "support/temp_folder.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using testing::random_tokens;
using testing::tiny;
using testing::values_of;

constexpr Device kCuda{DeviceKind::kCuda, 0};

// The report's tensors by name.
std::map<std::string, nlohmann::json> tensors_of(const fs::path& folder) {
  std::map<std::string, nlohmann::json> result;
  const auto report = nlohmann::json::parse(read_file(folder / "report.json"));
  for (const nlohmann::json& tensor : report["tensors"]) result[tensor["name"]] = tensor;
  return result;
}

// How far, relatively, the errors of a matrix's outputs may be apart when its weights are rounded
// along other trajectories: five deviations of a difference. The squares of rounding errors, even
// over a step, have a standard deviation of √0.8 times their mean; columns weigh unevenly, so that
// a quarter of the weights count; a root halves it. rounds: what inputs lose by being rounded.
double chance_of(const nlohmann::json& tensor, double rounds) {
  double weights = 0.25;
  for (const auto& size : tensor["shape"]) weights *= size.get<double>();
  return 2.5 * std::sqrt(2 * 0.8 / weights) + 2 * rounds;
}

TEST(DeviceQuantizer, NeedsADevice) {
  if (cuda::num_devices() > 0) GTEST_SKIP() << "there is one";
  const testing::TempFolder folder;
  ThreadPool pool({.num_threads = 1});
  testing::FreshRandom random;
  const CalibrationTokens tokens = random_tokens(96, 2, 16, random);
  QuantizeOptions options;
  options.device = kCuda;
  EXPECT_THROW(quantize_model(tiny("gemma4_e4b"), folder.path() / "out", tokens, pool, options),
               Error);
}

// The CPU computes the same; where a weight could as well be rounded the other way, both may choose
// otherwise, and what comes after sees other inputs.
TEST(DeviceQuantizer, ErrorsAreThoseOfTheCpu) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "this machine has no CUDA device";
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  for (const char* name : {"gemma4_e4b", "qwen3_5_nested", "qwen3_5_moe"}) {
    const testing::TempFolder folder;
    const CalibrationTokens tokens = random_tokens(96, 12, 60, random);
    QuantizeOptions options;
    options.min_inputs_per_column = 0.5;
    options.recipe.group_size = 32;
    options.match_source = random.integer(0, 1) == 1;
    quantize_model(tiny(name), folder.path() / "cpu", tokens, pool, options);
    const auto expected = tensors_of(folder.path() / "cpu");
    for (const ActivationPrecision precision :
         {ActivationPrecision::kF32, ActivationPrecision::kBF16}) {
      const bool exact = precision == ActivationPrecision::kF32;
      const fs::path out = folder.path() / (exact ? "f32" : "bf16");
      options.device = kCuda;
      options.precision = precision;
      const QuantizeResult result = quantize_model(tiny(name), out, tokens, pool, options);
      options.device = {};
      int64_t compared = 0;
      for (const auto& [tensor, found] : tensors_of(out)) {
        const nlohmann::json& other = expected.at(tensor);
        EXPECT_EQ(found["to"], other["to"]) << tensor;
        if (tensor.find("experts") == std::string::npos) {
          EXPECT_EQ(found.contains("output_error"), other.contains("output_error")) << tensor;
        }
        if (!found.contains("output_error") || !other.contains("output_error")) continue;
        ++compared;
        // Tokens near a tie go to other experts.
        if (exact) {
          EXPECT_NEAR(found["inputs"].get<double>(), other["inputs"].get<double>(),
                      0.02 * other["inputs"].get<double>() + 2)
              << name << " " << tensor;
        }
        const double error = other["output_error"];
        const double chance = chance_of(found, exact ? 0 : 0x1p-8);
        EXPECT_NEAR(found["output_error"].get<double>(), error, chance * error)
            << name << " " << tensor;
        const double nearest = other["output_error_rtn"];
        EXPECT_NEAR(found["output_error_rtn"].get<double>(), nearest, chance * nearest)
            << name << " " << tensor;
      }
      EXPECT_GT(compared, 0) << name;
    }
  }
}

// The largest key and value of a layer are off by what rounding makes of one number: five
// deviations of it, each rounded input of a matrix (five a layer) and the cache adding 2^-9 of its
// size, with float32 products 2^-24 and a root of the longest sum.
TEST(DeviceQuantizer, ScalesOfKeysAndValuesAreThoseOfTheCpu) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "this machine has no CUDA device";
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  for (const char* name : {"gemma4_e4b", "qwen3_5_nested", "gemma4_dense"}) {
    const testing::TempFolder folder;
    // More than one batch of the device, whose last pages are not full.
    const CalibrationTokens tokens = random_tokens(96, 100, 90, random);
    QuantizeOptions options;
    options.recipe.scheme = "keep";
    options.recipe.kv = KvRecipe::kInt8Static;
    options.method = QuantizeMethod::kNearest;
    const auto layers_of = [&](const char* out) {
      quantize_model(tiny(name), folder.path() / out, tokens, pool, options);
      return nlohmann::json::parse(read_file(folder.path() / out / "report.json"))["kv"]["layers"];
    };
    const nlohmann::json expected = layers_of("cpu");
    ASSERT_FALSE(expected.empty());
    options.device = kCuda;
    for (const bool exact : {true, false}) {
      options.precision = exact ? ActivationPrecision::kF32 : ActivationPrecision::kBF16;
      const nlohmann::json found = layers_of(exact ? "f32" : "bf16");
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        const double rounds = 6 * (found[i]["layer"].get<double>() + 1);
        const double chance = 5 * std::sqrt(rounds) * (exact ? 0x1p-24 * std::sqrt(128.0) : 0x1p-9);
        for (const char* what : {"keys", "values"}) {
          EXPECT_EQ(found[i][what]["values"], expected[i][what]["values"]);
          EXPECT_EQ(found[i][what]["saturated"], 0);
          const double scale = expected[i][what]["scale"];
          EXPECT_NEAR(found[i][what]["scale"].get<double>(), scale, chance * scale)
              << name << " " << found[i]["layer"] << " " << what;
        }
      }
    }
  }
}

// Inputs are off by what rounding makes of them (as above), and so are the logarithms of scales,
// half as much: a channel has another exponent where its logarithm lies that near to the middle of
// two, and then the next one.
TEST(DeviceQuantizer, BalancesAsTheCpuDoes) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "this machine has no CUDA device";
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  for (const char* name : {"gemma4_e4b", "gemma4_dense"}) {
    const testing::TempFolder folder;
    const CalibrationTokens tokens = random_tokens(96, 40, 60, random);
    QuantizeOptions options;
    options.recipe.scheme = "keep";
    options.recipe.kv = KvRecipe::kInt8;
    options.method = QuantizeMethod::kNearest;
    options.balance = 0.5;
    const auto groups_of = [&](const char* out) {
      quantize_model(tiny(name), folder.path() / out, tokens, pool, options);
      const std::string report = read_file(folder.path() / out / "report.json");
      return nlohmann::json::parse(report)["balance"]["groups"];
    };
    const nlohmann::json expected = groups_of("cpu");
    const ModelFiles cpu = open_source(folder.path() / "cpu", {}, /*fill=*/true);
    ASSERT_FALSE(expected.empty());
    options.device = kCuda;
    for (const bool exact : {true, false}) {
      const char* out = exact ? "f32" : "bf16";
      options.precision = exact ? ActivationPrecision::kF32 : ActivationPrecision::kBF16;
      const nlohmann::json found = groups_of(out);
      ASSERT_EQ(found.size(), expected.size());
      int64_t channels = 0, scaled = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        for (const char* same : {"before", "readers", "channels"}) {
          EXPECT_EQ(found[i][same], expected[i][same]) << name;
        }
        for (const char* end : {"smallest", "largest"}) {
          const double ratio = found[i][end].get<double>() / expected[i][end].get<double>();
          EXPECT_TRUE(ratio == 0.5 || ratio == 1 || ratio == 2) << name << " " << found[i];
        }
        channels += found[i]["channels"].get<int64_t>();
        scaled += found[i]["scaled"].get<int64_t>();
      }
      EXPECT_GT(scaled, 0) << name;

      const ModelFiles device = open_source(folder.path() / out, {}, /*fill=*/true);
      int64_t others = 0;
      for (const auto& [weight, stored] : cpu.weights().tensors()) {
        if (stored.weight.shape.rank() != 1) continue;
        const std::vector<float> a = values_of(stored.weight);
        const std::vector<float> b = values_of(device.weights().find(weight)->weight);
        ASSERT_EQ(a.size(), b.size()) << weight;
        for (size_t i = 0; i < a.size(); ++i) {
          if (a[i] == b[i]) continue;
          ++others;
          EXPECT_TRUE(a[i] == 2 * b[i] || b[i] == 2 * a[i]) << weight << " " << i;
        }
      }
      // Of 5 layers; twice the expectation, and what chance adds to a few.
      const double off = 5 * std::sqrt(6 * 5) * (exact ? 0x1p-24 * std::sqrt(128.0) : 0x1p-9);
      const double near_middle = 2 * 0.5 * off / std::log(2.0);
      EXPECT_LE(others, 2 * near_middle * static_cast<double>(channels) + 8) << name;
    }
  }
}

// Interrupted and resumed: to the same bytes.
TEST(DeviceQuantizer, GoesOnWhereItWasStopped) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "this machine has no CUDA device";
  testing::FreshRandom random;
  ThreadPool pool({.num_threads = 2});
  const testing::TempFolder folder;
  const CalibrationTokens tokens = random_tokens(96, 8, 40, random);
  QuantizeOptions options;
  options.device = kCuda;
  options.precision = ActivationPrecision::kBF16;
  options.recipe.kv = KvRecipe::kInt8Static;
  const fs::path model = tiny("gemma4_e4b");
  quantize_model(model, folder.path() / "whole", tokens, pool, options);
  options.progress = [](const QuantizeProgress& progress) {
    if (progress.phase.starts_with("layer 3")) throw Error("stopped");
  };
  EXPECT_THROW(quantize_model(model, folder.path() / "out", tokens, pool, options), Error);
  options.progress = nullptr;
  const QuantizeResult result = quantize_model(model, folder.path() / "out", tokens, pool, options);
  EXPECT_EQ(result.times.layers_resumed, 2);
  for (const fs::path& file : result.files) {
    EXPECT_EQ(read_file(folder.path() / "out" / file), read_file(folder.path() / "whole" / file));
  }
}

}  // namespace
}  // namespace braid

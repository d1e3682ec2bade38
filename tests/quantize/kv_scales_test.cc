#include "quantize/kv_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "cache/cache_pool.h"
#include "checkpoint/safetensors.h"
#include "models/registry.h"
#include "quantize/inputs.h"
#include "quantize/model_values.h"
#include "quantize/quantizer.h"
#include "runner/runner.h"
#include "support/fresh_seed.h"
#include "support/temp_folder.h"
#include "tensor/tensor.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::tiny;

// Slots without a token hold what must not be counted.
template <typename T>
void expect_only_tokens_count(DType dtype, float (*value)(T), T (*stored)(float)) {
  testing::FreshRandom random;
  std::normal_distribution<float> normal;
  ThreadPool pool({.num_threads = 3});
  Stream stream(pool);
  constexpr int64_t kPages = 12, kHeads = 3, kPageTokens = 8, kDim = 16;
  Tensor keys(dtype, Shape{kPages, kHeads, kPageTokens, kDim});
  Tensor values(dtype, keys.view().shape());
  for (const TensorView& view : {keys.view(), values.view()}) {
    for (T& x : view.span<T>()) x = stored(1e6f);
  }
  // 19 tokens in three pages and 8 in one, as they come.
  const std::vector<int32_t> first = {7, 2, 10}, second = {5};
  const std::vector<SequenceRows> rows = {{0, 19, 0, first}, {19, 8, 0, second}};
  float largest[2] = {};
  for (const SequenceRows& sequence : rows) {
    for (int64_t p = 0; p < sequence.num_rows; ++p) {
      const int64_t page = sequence.pages[p / kPageTokens];
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t d = 0; d < kDim; ++d) {
          const int64_t at = ((page * kHeads + h) * kPageTokens + p % kPageTokens) * kDim + d;
          for (const int i : {0, 1}) {
            T& x = (i == 0 ? keys : values).view().span<T>()[at];
            x = stored(normal(random.engine()));
            largest[i] = std::max(largest[i], std::abs(value(x)));
          }
        }
      }
    }
  }
  KvObserver observer(stream);
  observer.add({.keys = keys.view(), .values = values.view()}, rows);
  const KvLayerResult result = observer.result(3);
  EXPECT_EQ(result.layer, 3);
  EXPECT_EQ(result.key.count, 27 * kHeads * kDim);
  EXPECT_EQ(result.value.count, 27 * kHeads * kDim);
  EXPECT_EQ(result.key.largest, largest[0]);
  EXPECT_EQ(result.value.largest, largest[1]);
  // And of all that it is shown.
  observer.add({.keys = keys.view(), .values = values.view()}, rows);
  EXPECT_EQ(observer.result(3).key.count, 2 * 27 * kHeads * kDim);

  values.view().span<T>()[5 * kHeads * kPageTokens * kDim] = stored(HUGE_VALF);
  observer.add({.keys = keys.view(), .values = values.view()}, rows);
  EXPECT_THROW(observer.result(3), Error);
}

TEST(KvObserver, CountsTokensOfFloat32Pages) {
  expect_only_tokens_count<float>(
      DType::kF32, [](float x) { return x; }, [](float x) { return x; });
}

TEST(KvObserver, CountsTokensOfBfloat16Pages) {
  expect_only_tokens_count<BFloat16>(
      DType::kBF16, [](BFloat16 x) { return to_float(x); }, [](float x) { return to_bfloat16(x); });
}

// The largest key and value of each layer that keeps some, in passes of whole sequences.
std::map<int64_t, KvLayerResult> seen_in(const Model& model, const CalibrationTokens& tokens) {
  std::map<int64_t, KvLayerResult> results;
  ThreadPool threads({.num_threads = 2});
  Stream stream(threads);
  for (const std::vector<int32_t>& ids : tokens.sequences) {
    CachePool pool(model.cache_layout(),
                   {.max_tokens = tokens.length, .max_step_tokens = tokens.length});
    Runner runner(model, pool, stream);
    SequenceState sequence(pool);
    StepPlan plan;
    plan.sequences.push_back({&sequence, ids, WantedLogits::kLast});
    runner.run(plan);
    for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
      if (pool.plan().layers[layer].owner != layer) continue;
      const PagedKv kv = pool.layer_kv(layer);
      const std::span<const int32_t> pages = sequence.pages(pool.layer_group(layer));
      for (int64_t p = 0; p < tokens.length; ++p) {
        for (int64_t h = 0; h < kv.num_kv_heads(); ++h) {
          const int64_t at =
              ((pages[p / kv.page_tokens()] * kv.num_kv_heads() + h) * kv.page_tokens() +
               p % kv.page_tokens()) *
              kv.head_dim();
          for (int64_t d = 0; d < kv.head_dim(); ++d) {
            KvLayerResult& result = results[layer];
            result.key.largest =
                std::max(result.key.largest, std::abs(kv.keys.span<float>()[at + d]));
            result.value.largest =
                std::max(result.value.largest, std::abs(kv.values.span<float>()[at + d]));
          }
        }
      }
    }
  }
  return results;
}

class KvScalesTest : public ::testing::Test {
 protected:
  CalibrationTokens random_tokens(int64_t sequences, int64_t length) {
    return testing::random_tokens(96, sequences, length, random_);
  }
  fs::path out() const { return folder_.path() / "out"; }
  static nlohmann::json scheme_of(const fs::path& folder) {
    return nlohmann::json::parse(
        read_file(folder / "config.json"))["quantization_config"]["kv_cache_scheme"];
  }
  static QuantizeOptions options_of(const char* scheme, KvRecipe kv) {
    return {
        .recipe = {.scheme = scheme, .group_size = 32, .kv = kv},
        .method = scheme == std::string("w4a16") ? QuantizeMethod::kGptq : QuantizeMethod::kNearest,
        .min_inputs_per_column = 0};
  }

  testing::TempFolder folder_;
  testing::FreshRandom random_;
  ThreadPool pool_{{.num_threads = 2}};
};

// The scales are those of the model as it is written: what it keeps on the calibration has the
// largest code 127.
TEST_F(KvScalesTest, ScalesAreThoseOfTheFinishedModel) {
  for (const char* name : {"gemma4_e4b", "gemma4_dense", "qwen3_5_nested", "qwen3_5_moe"}) {
    for (const char* scheme : {"keep", "w8a8", "w4a16"}) {
      // Rows of 80 values.
      if (name == std::string("gemma4_dense") && scheme != std::string("keep")) continue;
      SCOPED_TRACE(fmt::format("{} {}", name, scheme));
      fs::remove_all(out());
      const CalibrationTokens tokens = random_tokens(5, 40);
      QuantizeOptions options = options_of(scheme, KvRecipe::kInt8Static);
      options.measure_outputs = random_.integer(0, 1) == 1;
      const QuantizeResult result = quantize_model(tiny(name), out(), tokens, pool_, options);
      ModelFiles files = ModelFiles::open(out());
      std::map<std::string, float> scales;
      for (const StoredTensor& tensor : read_safetensors(out() / "model.safetensors")) {
        if (!tensor.name.ends_with(".k_scale") && !tensor.name.ends_with(".v_scale")) continue;
        EXPECT_EQ(tensor.dtype_name, "F32");
        scales[tensor.name] = *reinterpret_cast<const float*>(tensor.weight.data);
      }
      const std::unique_ptr<Model> model = load_model(files);
      const std::map<int64_t, KvLayerResult> seen = seen_in(*model, tokens);
      ASSERT_EQ(scales.size(), 2 * seen.size());
      EXPECT_EQ(result.added.size(), scales.size());
      const auto report = nlohmann::json::parse(read_file(out() / "report.json"));
      EXPECT_EQ(report["tensors_added"].size(), scales.size());
      ASSERT_EQ(report["kv"]["layers"].size(), seen.size());
      EXPECT_THAT(read_file(out() / "report.md"), HasSubstr("## Keys and values"));
      size_t i = 0;
      for (const auto& [layer, largest] : seen) {
        const auto scale_of = [&](const char* kind) {
          const std::string end = fmt::format("layers.{}.self_attn.{}_scale", layer, kind);
          for (const auto& [tensor, scale] : scales) {
            if (tensor.ends_with(end)) return scale;
          }
          return 0.0f;
        };
        EXPECT_EQ(scale_of("k"), largest.key.largest / 127) << layer;
        EXPECT_EQ(scale_of("v"), largest.value.largest / 127) << layer;
        const nlohmann::json& facts = report["kv"]["layers"][i++];
        EXPECT_EQ(facts["layer"], layer);
        EXPECT_EQ(facts["keys"]["scale"].get<float>(), scale_of("k"));
        EXPECT_EQ(facts["values"]["saturated"], 0);
        EXPECT_GT(facts["values"]["relative_error"].get<double>(), 0);
        EXPECT_LT(facts["values"]["relative_error"].get<double>(), 0.05);
      }
      EXPECT_EQ(scheme_of(out())["strategy"], "tensor");
      EXPECT_EQ(scheme_of(out())["dynamic"], false);
    }
  }
}

TEST_F(KvScalesTest, ScalesThatAreFoundAsTheyComeNeedNoText) {
  for (const char* scheme : {"keep", "w8a8"}) {
    fs::remove_all(out());
    const QuantizeResult result =
        quantize_model(tiny("gemma4_e4b"), out(), {}, pool_, options_of(scheme, KvRecipe::kInt8));
    EXPECT_TRUE(result.added.empty());
    EXPECT_EQ(scheme_of(out())["dynamic"], true);
    EXPECT_EQ(scheme_of(out())["strategy"], "token");
    ModelFiles files = ModelFiles::open(out());
    EXPECT_NO_THROW(load_model(files));
  }
  const std::vector<int32_t> ids = random_tokens(1, 30).sequences[0];
  fs::remove_all(out());
  quantize_model(tiny("gemma4_e4b"), out(), {}, pool_, options_of("keep", KvRecipe::kInt8));
  ModelFiles kept = ModelFiles::open(out()), source = ModelFiles::open(tiny("gemma4_e4b"));
  EXPECT_EQ(testing::logits_of(*load_model(kept), ids),
            testing::logits_of(*load_model(source), ids));
}

// Also those that an earlier run found: they are not computed anew.
TEST_F(KvScalesTest, FinishedScalesAreKept) {
  const CalibrationTokens tokens = random_tokens(4, 32);
  QuantizeOptions options = options_of("w8a8", KvRecipe::kInt8Static);
  quantize_model(tiny("gemma4_e4b"), folder_.path() / "whole", tokens, pool_, options);
  int64_t calls = 0;
  const int64_t stop_at = random_.integer(2, 5);
  options.progress = [&](const QuantizeProgress&) {
    if (calls++ == stop_at) throw Error("interrupted");
  };
  EXPECT_THROW(quantize_model(tiny("gemma4_e4b"), out(), tokens, pool_, options), Error);
  const fs::path kept = out().string() + ".quantizing/kv-00000.json";
  const std::string text = read_file(kept);
  options.progress = nullptr;
  quantize_model(tiny("gemma4_e4b"), out(), tokens, pool_, options);
  for (const char* name : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(read_file(out() / name), read_file(folder_.path() / "whole" / name)) << name;
  }

  fs::remove_all(out());
  calls = 0;
  options.progress = [&](const QuantizeProgress&) {
    if (calls++ == stop_at) throw Error("interrupted");
  };
  EXPECT_THROW(quantize_model(tiny("gemma4_e4b"), out(), tokens, pool_, options), Error);
  auto object = nlohmann::json::parse(text);
  object["key"]["scale"] = 0.375;
  std::ofstream(kept) << object.dump();
  options.progress = nullptr;
  quantize_model(tiny("gemma4_e4b"), out(), tokens, pool_, options);
  const auto report = nlohmann::json::parse(read_file(out() / "report.json"));
  EXPECT_EQ(report["kv"]["layers"][0]["keys"]["scale"], 0.375);
}

TEST_F(KvScalesTest, RefusesWhatCannotBe) {
  const auto error_of = [&](const CalibrationTokens& tokens, const QuantizeOptions& options) {
    try {
      quantize_model(tiny("gemma4_e4b"), out(), tokens, pool_, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of({}, options_of("keep", KvRecipe::kInt8Static)),
              HasSubstr("need calibration text"));
  EXPECT_THAT(error_of({}, options_of("keep", KvRecipe::kUnspecified)),
              HasSubstr("nothing to quantise"));
  QuantizeOptions gptq = options_of("w4a16", KvRecipe::kInt8);
  gptq.file_format = QuantizedFileFormat::kGptq;
  EXPECT_THAT(error_of(random_tokens(2, 8), gptq), HasSubstr("only compressed-tensors"));
  EXPECT_FALSE(fs::exists(out()));
}

}  // namespace
}  // namespace braid

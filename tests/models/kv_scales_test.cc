#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <variant>

#include "base/error.h"
#include "cache/cache_pool.h"
#include "models/registry.h"
#include "tensor/buffer.h"

namespace braid {
namespace {

// A tensor as a file would hold it, of type F32, BF16 or F16.
StoredTensor tensor_of(const std::string& name, const Shape& shape, float value,
                       FormatId id = FormatId::kF32) {
  const QuantFormat& format = quant_format(id);
  const auto buffer = std::make_shared<Buffer>(
      static_cast<size_t>(shape.num_elements() * format.block_bytes), Device{});
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    quantize(format, &value, 1, buffer->data() + i * format.block_bytes);
  }
  return {.name = name,
          .file = "scales.safetensors",
          .dtype_name = id == FormatId::kF32    ? "F32"
                        : id == FormatId::kBF16 ? "BF16"
                                                : "F16",
          .weight = {.format = &format, .shape = shape, .data = buffer->data(), .owner = buffer},
          .stored_bytes = shape.num_elements() * format.block_bytes};
}

ModelFiles open(const char* model) {
  return ModelFiles::open(std::filesystem::path(BRAID_TEST_DATA) / "models" / model);
}

std::string key_name(int64_t layer) { return fmt::format("layers.{}.self_attn.k_scale", layer); }
std::string value_name(int64_t layer) { return fmt::format("layers.{}.self_attn.v_scale", layer); }

bool stores_kv(const LayerCache& layer) {
  return std::holds_alternative<FullKv>(layer) || std::holds_alternative<WindowKv>(layer);
}

// Of each layer that stores keys and values, in all types and both shapes that files have.
void add_scales(WeightMap& weights, const CacheLayout& layout) {
  constexpr FormatId kTypes[] = {FormatId::kF32, FormatId::kBF16, FormatId::kF16};
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    if (!stores_kv(layout.layers[i])) continue;
    const auto layer = static_cast<int64_t>(i);
    const Shape shape = i % 2 == 0 ? Shape{1} : Shape{1, 1};
    weights.add(
        tensor_of(key_name(layer), shape, std::ldexp(1.5f, -static_cast<int>(i)), kTypes[i % 3]));
    weights.add(tensor_of(value_name(layer), {1}, std::ldexp(1.25f, -static_cast<int>(i)),
                          kTypes[(i + 1) % 3]));
  }
}

TEST(KvScalesTest, AreBoundByEveryFamily) {
  for (const char* name : {"gemma3", "gemma4_e2b", "gemma4_moe", "qwen3_next", "qwen3_5_moe"}) {
    SCOPED_TRACE(name);
    ModelFiles plain = open(name);
    const auto without = load_model(plain);
    const CacheLayout layout = without->cache_layout();
    EXPECT_FALSE(has_kv_scales(*without, name));

    ModelFiles files = open(name);
    add_scales(files.weights(), layout);
    const auto model = load_model(files);
    EXPECT_TRUE(has_kv_scales(*model, name));
    for (int64_t i = 0; i < model->num_layers(); ++i) {
      EXPECT_EQ(without->kv_scales(i), KvScales{});
      const float size = std::ldexp(1.0f, -static_cast<int>(i));
      const bool stores = stores_kv(layout.layers[i]);
      EXPECT_EQ(model->kv_scales(i), (stores ? KvScales{1.5f * size, 1.25f * size} : KvScales{}))
          << i;
    }
    EXPECT_EQ(model->load_report().num_consumed, model->load_report().num_tensors);
    EXPECT_EQ(model->load_report().num_parameters, without->load_report().num_parameters);

    // Pools of int8 get them, unless they are to have scales of their own.
    for (const DType dtype : {DType::kBF16, DType::kI8}) {
      for (const bool dynamic : {false, true}) {
        const CachePool pool(layout,
                             {.kv_dtype = dtype, .dynamic_kv_scales = dynamic, .max_tokens = 8});
        for (int64_t i = 0; i < model->num_layers(); ++i) {
          const bool wanted = dtype == DType::kI8 && !dynamic;
          EXPECT_EQ(layer_kv(*model, pool, i).static_scales,
                    wanted ? model->kv_scales(i) : KvScales{});
        }
      }
    }
  }
}

// Not in published recipes, but read if they are there.
TEST(KvScalesTest, OfDraftHeadsAreTheirOwn) {
  ModelFiles files = open("qwen3_next");
  files.weights().add(tensor_of("mtp.layers.0.self_attn.k_scale", {1}, 0.5f));
  files.weights().add(tensor_of("mtp.layers.0.self_attn.v_scale", {1}, 0.25f));
  const auto model = load_model(files);
  EXPECT_FALSE(has_kv_scales(*model, "x"));
  ASSERT_NE(model->draft_head(), nullptr);
  EXPECT_EQ(model->draft_head()->kv_scales(0), (KvScales{0.5f, 0.25f}));
}

TEST(KvScalesTest, OfLayersThatBorrowKeysAreIgnored) {
  ModelFiles files = open("gemma4_e2b");
  const int64_t borrower = 6;
  files.weights().add(tensor_of(key_name(borrower), {1}, 0.5f));
  files.weights().add(tensor_of(value_name(borrower), {1}, 0.5f));
  const auto model = load_model(files);
  EXPECT_FALSE(has_kv_scales(*model, "x"));
  EXPECT_EQ(model->load_report().num_ignored, 2);
}

TEST(KvScalesTest, ReplacedLayersBringTheirs) {
  ModelFiles files = open("gemma3");
  const auto model = load_model(files);
  WeightMap layer;
  for (const auto& [name, tensor] : files.weights().tensors()) {
    if (name.starts_with("layers.2.")) layer.add(tensor);
  }
  layer.add(tensor_of(key_name(2), {1}, 0.5f));
  layer.add(tensor_of(value_name(2), {1}, 0.25f));
  model->rebind_layer(2, layer);
  EXPECT_EQ(model->kv_scales(2), (KvScales{0.5f, 0.25f}));
}

std::string load_error(const std::function<void(WeightMap&)>& spoil) {
  ModelFiles files = open("gemma3");
  ModelFiles plain = open("gemma3");
  add_scales(files.weights(), load_model(plain)->cache_layout());
  spoil(files.weights());
  try {
    load_model(files);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(KvScalesTest, UselessNumbersAreNamed) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0f, -1.0f, infinity, std::nanf(""), 0x1p-101f, 0x1p101f}) {
    for (const std::string& name : {key_name(1), value_name(5)}) {
      const std::string error = load_error([&](WeightMap& weights) {
        weights.remove(name);
        weights.add(tensor_of(name, {1}, bad));
      });
      EXPECT_THAT(error, testing::HasSubstr(name + " (scales.safetensors): " +
                                            fmt::format("{}", bad) + ", but a scale must"));
    }
  }
}

TEST(KvScalesTest, OnesOfOtherShapesOrTypesAreNamed) {
  const std::string error = load_error([&](WeightMap& weights) {
    weights.remove(key_name(0));
    weights.add(tensor_of(key_name(0), {2}, 1));
  });
  EXPECT_THAT(error, testing::AllOf(testing::HasSubstr(key_name(0)), testing::HasSubstr("[2]")));
}

TEST(KvScalesTest, MissingOnesAreNamed) {
  EXPECT_THAT(load_error([&](WeightMap& weights) { weights.remove(value_name(3)); }),
              testing::HasSubstr(value_name(3) + ": missing"));
  const std::string error = load_error([&](WeightMap& weights) {
    weights.remove(key_name(3));
    weights.remove(value_name(3));
  });
  EXPECT_THAT(error, testing::HasSubstr("layers.3.self_attn.k_scale and v_scale are missing"));
}

}  // namespace
}  // namespace braid

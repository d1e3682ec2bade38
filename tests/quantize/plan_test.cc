#include "quantize/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "quantize/quantization_entry.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

class PlanTest : public ::testing::Test {
 protected:
  void add(const std::string& name, const Shape& shape) {
    StoredTensor tensor;
    tensor.name = name;
    tensor.file_name = "model." + name;
    tensor.file = "model.safetensors";
    tensor.dtype_name = "BF16";
    tensor.weight.format = &quant_format(FormatId::kBF16);
    tensor.weight.shape = shape;
    tensor.stored_bytes = 2 * shape.num_elements();
    weights_.add(std::move(tensor));
  }
  void SetUp() override {
    weights_.set_origin("some-model");
    add("embed_tokens.weight", {1000, 256});
    add("norm.weight", {256});
    add("layers.0.input_layernorm.weight", {256});
    add("layers.0.self_attn.q_proj.weight", {512, 256});
    add("layers.0.self_attn.q_norm.weight", {64});
    add("layers.0.mlp.down_proj.weight", {256, 704});
    add("layers.0.router.proj.weight", {16, 256});
    add("layers.0.experts.down_proj", {16, 256, 96});
    add("layers.1.linear_attn.in_proj_qkvz.weight", {768, 256});
    add("layers.1.linear_attn.in_proj_ba.weight", {16, 256});
    add("layers.1.linear_attn.conv1d.weight", {512, 1, 4});
    add("layers.1.mlp.gate.weight", {32, 256});
    add("layers.1.mlp.experts.3.up_proj.weight", {32, 256});
    add("layers.1.mlp.shared_expert.up_proj.weight", {32, 256});
    add("layers.1.mlp.shared_expert_gate.weight", {1, 256});
    add("mtp.layers.0.mlp.up_proj.weight", {64, 256});
    add("vision_tower.proj.weight", {64, 256});
  }
  std::string format_of(const std::vector<TensorPlan>& plans, const std::string& name) const {
    for (const TensorPlan& plan : plans) {
      if (plan.name == name) return plan.quantised() ? std::string(plan.format->name) : "kept";
    }
    return "absent";
  }
  std::string error_of(const Recipe& recipe) const {
    try {
      plan_tensors(weights_, recipe);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  WeightMap weights_;
};

TEST_F(PlanTest, DefaultsQuantiseLayersButNotWhatSteersThem) {
  const auto plans = plan_tensors(weights_, {});
  EXPECT_EQ(plans.size(), weights_.size());
  EXPECT_EQ(format_of(plans, "layers.0.self_attn.q_proj.weight"), "w4g128");
  // 704 = 5.5 · 128 = 11 · 64; 96 = 3 · 32.
  EXPECT_EQ(format_of(plans, "layers.0.mlp.down_proj.weight"), "w4g64");
  EXPECT_EQ(format_of(plans, "layers.0.experts.down_proj"), "w4g32");
  EXPECT_EQ(format_of(plans, "layers.1.linear_attn.in_proj_qkvz.weight"), "w4g128");
  EXPECT_EQ(format_of(plans, "layers.1.mlp.experts.3.up_proj.weight"), "w4g128");
  for (const char* kept :
       {"embed_tokens.weight", "norm.weight", "layers.0.input_layernorm.weight",
        "layers.0.self_attn.q_norm.weight", "layers.0.router.proj.weight",
        "layers.1.linear_attn.in_proj_ba.weight", "layers.1.linear_attn.conv1d.weight",
        "layers.1.mlp.gate.weight", "layers.1.mlp.shared_expert.up_proj.weight",
        "layers.1.mlp.shared_expert_gate.weight", "mtp.layers.0.mlp.up_proj.weight",
        "vision_tower.proj.weight"}) {
    EXPECT_EQ(format_of(plans, kept), "kept") << kept;
  }
  for (const TensorPlan& plan : plans) {
    if (plan.name == "layers.0.mlp.down_proj.weight") {
      EXPECT_THAT(plan.note, HasSubstr("groups of 64, as 128 does not divide 704"));
    }
  }
}

TEST_F(PlanTest, SchemesAndSizes) {
  auto plans = plan_tensors(weights_, {.scheme = "w8a8"});
  EXPECT_EQ(format_of(plans, "layers.0.mlp.down_proj.weight"), "w8c");
  plans = plan_tensors(weights_, {.group_size = 32, .asymmetric = true});
  EXPECT_EQ(format_of(plans, "layers.0.self_attn.q_proj.weight"), "w4g32_asym");
  plans = plan_tensors(weights_, {.group_size = 0});
  EXPECT_EQ(format_of(plans, "layers.0.mlp.down_proj.weight"), "w4g64");
  for (const TensorPlan& plan : plans) EXPECT_EQ(plan.per_row, plan.quantised());
  plans = plan_tensors(weights_, {.head = true});
  EXPECT_EQ(format_of(plans, "embed_tokens.weight"), "w4g128");
}

TEST_F(PlanTest, LaterRulesWin) {
  const auto plans = plan_tensors(weights_, {.rules = {{"shared_expert", "w8a8"},
                                                       {"layers.0.*", "w4g32"},
                                                       {"layers.0.self_attn.q_proj", "keep"},
                                                       {"mtp", "w4a16"}}});
  EXPECT_EQ(format_of(plans, "layers.1.mlp.shared_expert.up_proj.weight"), "w8c");
  EXPECT_EQ(format_of(plans, "layers.0.mlp.down_proj.weight"), "w4g32");
  EXPECT_EQ(format_of(plans, "layers.0.router.proj.weight"), "w4g32");
  EXPECT_EQ(format_of(plans, "layers.0.self_attn.q_proj.weight"), "kept");
  EXPECT_EQ(format_of(plans, "mtp.layers.0.mlp.up_proj.weight"), "w4g128");
}

TEST_F(PlanTest, WhatCannotBeDoneIsNamed) {
  EXPECT_THAT(error_of({.strict = true}),
              HasSubstr("layers.0.experts.down_proj: groups of 128 do not divide rows of 96"));
  EXPECT_THAT(error_of({.rules = {{"layers.7.*", "keep"}}}),
              HasSubstr("--recipe 'layers.7.*=keep'"));
  EXPECT_THAT(error_of({.rules = {{"mlp", "w3"}}}), HasSubstr("--recipe 'w3': unknown"));
  EXPECT_THAT(error_of({.group_size = 48}), HasSubstr("--group-size 48"));
  EXPECT_THAT(error_of({.rules = {{"*", "keep"}}}), HasSubstr("nothing to quantise"));
  add("layers.2.mlp.up_proj.weight", {64, 48});
  EXPECT_THAT(error_of({}),
              HasSubstr("layers.2.mlp.up_proj.weight: rows of 48 values are no multiple of 32"));
}

TEST_F(PlanTest, ConfigsTellWhatIsQuantised) {
  const auto plans = plan_tensors(weights_, {});
  const auto config = nlohmann::json::parse(
      with_compressed_tensors_entry("{\"a\": 1}", plans, false, KvRecipe::kUnspecified));
  EXPECT_EQ(config["a"], 1);
  const auto& entry = config["quantization_config"];
  EXPECT_EQ(entry["format"], "pack-quantized");
  EXPECT_EQ(entry["config_groups"].size(), 3u);  // groups of 128, 64 and 32
  std::vector<std::string> ignored = entry["ignore"];
  EXPECT_THAT(ignored, ::testing::UnorderedElementsAre(
                           "model.layers.0.router.proj", "model.layers.1.linear_attn.in_proj_ba",
                           "model.layers.1.mlp.gate", "model.layers.1.mlp.shared_expert.up_proj",
                           "model.layers.1.mlp.shared_expert_gate",
                           "model.mtp.layers.0.mlp.up_proj", "model.vision_tower.proj", "lm_head"));
  const auto one = nlohmann::json::parse(with_compressed_tensors_entry(
      "{}", plan_tensors(weights_, {.scheme = "w8a8"}), false, KvRecipe::kUnspecified));
  const auto& group = one["quantization_config"]["config_groups"]["group_0"];
  EXPECT_EQ(group["targets"], nlohmann::json({"Linear"}));
  EXPECT_EQ(group["format"], "int-quantized");
  EXPECT_EQ(group["input_activations"]["dynamic"], true);
  EXPECT_TRUE(one["quantization_config"]["kv_cache_scheme"].is_null());
}

TEST_F(PlanTest, ConfigsTellHowKeysAndValuesAreKept) {
  EXPECT_THAT(error_of({.scheme = "keep"}), HasSubstr("nothing to quantise"));
  for (const KvRecipe kv : {KvRecipe::kInt8, KvRecipe::kInt8Static}) {
    const auto plans = plan_tensors(weights_, {.scheme = "keep", .kv = kv});
    const auto entry = nlohmann::json::parse(
        with_compressed_tensors_entry("{}", plans, false, kv))["quantization_config"];
    EXPECT_EQ(entry["format"], "dense");
    EXPECT_TRUE(entry["config_groups"].empty());
    const auto& scheme = entry["kv_cache_scheme"];
    EXPECT_EQ(scheme["num_bits"], 8);
    EXPECT_EQ(scheme["type"], "int");
    EXPECT_EQ(scheme["symmetric"], true);
    EXPECT_EQ(scheme["strategy"], kv == KvRecipe::kInt8 ? "token" : "tensor");
    EXPECT_EQ(scheme["dynamic"], kv == KvRecipe::kInt8);
  }
  add("layers.1.self_attn.k_scale", {1});
  EXPECT_THAT(error_of({.scheme = "w8a8"}), HasSubstr("layers.1.self_attn.k_scale belongs to"));
}

}  // namespace
}  // namespace braid

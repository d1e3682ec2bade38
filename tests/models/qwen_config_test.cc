#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/qwen3_next_config.h"

namespace braid {
namespace {

using nlohmann::json;

// The released Qwen3-Next 80B-A3B, with the flat keys.
json released() {
  return json::parse(R"({
    "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048,
    "num_hidden_layers": 48, "full_attention_interval": 4, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25, "rope_theta": 1e7,
    "rope_scaling": null, "max_position_embeddings": 262144, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10,
    "norm_topk_prob": true, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "intermediate_size": 5120, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "attention_bias": false,
    "tie_word_embeddings": false})");
}

Qwen3NextConfig parse(const json& config) {
  return Qwen3NextConfig::from_json(ConfigReader(config.dump(), "config.json"));
}

// What is wrong with the released config once `field` has this value (null: is absent).
std::string error_with(const char* field, const json& value) {
  json config = released();
  config[field] = value;
  try {
    parse(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Qwen3NextConfig, ReleasedKeys) {
  const Qwen3NextConfig config = parse(released());
  EXPECT_EQ(config.family, "qwen3_next");
  ASSERT_EQ(config.layers.size(), 48u);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    EXPECT_EQ(config.layers[i].recurrent, i % 4 != 3) << i;
    EXPECT_TRUE(config.layers[i].sparse) << i;
  }
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rope.theta, 1e7);
  EXPECT_EQ(config.delta.conv_channels(), 8192);
  EXPECT_EQ(config.delta.value_width(), 4096);
  EXPECT_TRUE(config.storage.joint_qkvz);
  EXPECT_EQ(config.storage.norm_offset, 1);
  EXPECT_FALSE(config.tied_head);
}

TEST(Qwen3NextConfig, RopeParametersWinOverFlatKeys) {
  json config = released();
  config["rope_parameters"] = {{"rope_type", "default"},
                               {"rope_theta", 5e6},
                               {"partial_rotary_factor", 0.5},
                               {"mrope_section", {11, 11, 10}},
                               {"mrope_interleaved", true}};
  const Qwen3NextConfig parsed = parse(config);
  EXPECT_EQ(parsed.rope.theta, 5e6);
  EXPECT_EQ(parsed.rotary_dim, 128);
  config.erase("partial_rotary_factor");
  config["rope_parameters"].erase("partial_rotary_factor");
  EXPECT_EQ(parse(config).rotary_dim, 64) << "a missing factor is 0.25";
}

TEST(Qwen3NextConfig, LayerTypesWinAndHaveAliases) {
  json config = released();
  config["num_hidden_layers"] = 4;
  config["layer_types"] = {"full_attention", "mamba", "attention", "linear_attention"};
  const auto layers = parse(config).layers;
  EXPECT_FALSE(layers[0].recurrent);
  EXPECT_TRUE(layers[1].recurrent);
  EXPECT_FALSE(layers[2].recurrent);
  EXPECT_TRUE(layers[3].recurrent);
}

TEST(Qwen3NextConfig, SparseStepAndDenseLayers) {
  json config = released();
  config["num_hidden_layers"] = 6;
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  const auto layers = parse(config).layers;
  for (size_t i = 0; i < layers.size(); ++i) EXPECT_EQ(layers[i].sparse, i == 1 || i == 5) << i;
}

TEST(Qwen3NextConfig, NestedTextConfigOfTheSuccessors) {
  json text = released();
  for (const char* key : {"num_experts", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
                          "num_experts_per_tok", "tie_word_embeddings"}) {
    text.erase(key);
  }
  text["model_type"] = "qwen3_5_text";
  text["attn_output_gate"] = true;
  text["output_gate_type"] = "swish";
  text["mtp_num_hidden_layers"] = 1;
  const json config = {
      {"model_type", "qwen3_5"}, {"text_config", text}, {"tie_word_embeddings", true}};
  const Qwen3NextConfig parsed = parse(config);
  EXPECT_EQ(parsed.family, "qwen3_5");
  EXPECT_TRUE(parsed.tied_head);
  EXPECT_EQ(parsed.num_experts, 0);
  EXPECT_EQ(parsed.num_mtp_layers, 1);
  EXPECT_FALSE(parsed.layers[0].sparse);
  EXPECT_FALSE(parsed.storage.joint_qkvz);
}

TEST(Qwen3NextConfig, MissingFieldsAreNamed) {
  for (const char* field :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "rope_theta", "max_position_embeddings",
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim", "num_experts_per_tok",
        "moe_intermediate_size", "shared_expert_intermediate_size", "rms_norm_eps",
        "full_attention_interval"}) {
    EXPECT_THAT(error_with(field, nullptr),
                testing::AllOf(testing::HasSubstr("config.json"), testing::HasSubstr(field)));
  }
}

TEST(Qwen3NextConfig, WhatIsNotImplementedIsRefusedByName) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const std::vector<std::pair<const char*, json>> cases = {
      {"attention_bias", true},
      {"attn_output_gate", false},
      {"output_gate_type", "sigmoid"},
      {"hidden_act", "gelu"},
      {"use_sliding_window", true},
      {"mtp_num_hidden_layers", 2},
      {"linear_num_value_heads", 24},
      {"num_key_value_heads", 3},
      {"num_experts_per_tok", 513},
      {"partial_rotary_factor", 1.5},
      {"linear_conv_kernel_dim", 1},
      {"layer_types", {"full_attention"}},
      {"full_attention_interval", 0},
      {"decoder_sparse_step", 0},
      {"mlp_only_layers", {-1}},
      {"num_hidden_layers", 0},
      {"rope_theta", -1.0},
      {"hidden_size", "wide"},
  };
  for (const auto& [field, value] : cases) {
    const std::string error = error_with(field, value);
    EXPECT_NE(error, "no error") << field;
    EXPECT_THAT(error, testing::HasSubstr("config.json")) << field;
  }
  EXPECT_THAT(error_with("rope_scaling", yarn),
              testing::HasSubstr("original_max_position_embeddings"));
  EXPECT_THAT(error_with("rope_scaling", {{"rope_type", "longrope"}}),
              testing::HasSubstr("'longrope'"));
  EXPECT_THAT(error_with("attention_bias", true), testing::HasSubstr("attention_bias"));
  EXPECT_THAT(error_with("output_gate_type", "sigmoid"), testing::HasSubstr("sigmoid"));
}

}  // namespace
}  // namespace braid

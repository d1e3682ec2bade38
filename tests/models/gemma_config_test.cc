#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/gemma3_config.h"
#include "models/gemma4_config.h"

namespace braid {
namespace {

using nlohmann::json;

// A 26B-A4B-like config with the flat keys of the release.
json gemma4_json() {
  return json::parse(R"({
    "model_type": "gemma4_text", "vocab_size": 512, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
    "head_dim": 16, "global_head_dim": 32, "intermediate_size": 96, "num_hidden_layers": 7,
    "hidden_size_per_layer_input": 0, "sliding_window": 16, "final_logit_softcapping": 30.0})");
}

Gemma4Config gemma4(const json& config) {
  return Gemma4Config::from_json(ConfigReader(config.dump(), "config.json"));
}

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Gemma4Config, FlatKeysShapeFullLayers) {
  const Gemma4Config config = gemma4(gemma4_json());
  ASSERT_EQ(config.layers.size(), 7u);
  EXPECT_TRUE(config.layers[0].sliding);
  EXPECT_EQ(config.layers[0].head_dim, 16);
  EXPECT_EQ(config.layers[0].num_kv_heads, 2);
  EXPECT_FALSE(config.layers[0].values_from_keys);
  EXPECT_FALSE(config.layers[5].sliding);
  EXPECT_EQ(config.layers[5].head_dim, 32);
  EXPECT_EQ(config.layers[5].num_kv_heads, 1);
  EXPECT_TRUE(config.layers[5].values_from_keys);
  EXPECT_FALSE(config.layers[6].sliding) << "the last layer is full when layer_types is missing";
  EXPECT_EQ(config.full_rope.type, RopeConfig::Type::kProportional);
  EXPECT_EQ(config.full_rope.theta, 1e6);
  EXPECT_EQ(config.full_rope.partial_rotary_factor, 0.25);
  EXPECT_EQ(config.sliding_rope.theta, 1e4);
}

TEST(Gemma4Config, GlobalKvHeadsNeedKEqV) {
  json flat = gemma4_json();
  flat["attention_k_eq_v"] = false;
  EXPECT_EQ(gemma4(flat).layers[5].num_kv_heads, 2);
  flat = gemma4_json();
  flat["num_global_key_value_heads"] = nullptr;
  EXPECT_EQ(gemma4(flat).layers[5].num_kv_heads, 2);
}

TEST(Gemma4Config, PerLayerConfigWins) {
  json config = gemma4_json();
  config.erase("global_head_dim");
  config.erase("num_global_key_value_heads");
  config["per_layer_config"] = {{"5", {{"head_dim", 32}, {"num_key_value_heads", 1}}}};
  const Gemma4Config parsed = gemma4(config);
  EXPECT_EQ(parsed.layers[5].head_dim, 32);
  EXPECT_EQ(parsed.layers[5].num_kv_heads, 1);
  EXPECT_EQ(parsed.layers[6].head_dim, 16) << "not listed: the common value";
  config["per_layer_config"]["5"]["rope_theta"] = 5;
  EXPECT_THAT(error_of([&] { gemma4(config); }), testing::HasSubstr("rope_theta"));
}

TEST(Gemma4Config, DefaultsThatBite) {
  json config = gemma4_json();
  for (const char* key : {"global_head_dim", "hidden_size_per_layer_input", "sliding_window",
                          "final_logit_softcapping"}) {
    config.erase(key);
  }
  const Gemma4Config parsed = gemma4(config);
  EXPECT_EQ(parsed.layers[5].head_dim, 512);
  EXPECT_EQ(parsed.per_layer_width, 256);
  EXPECT_EQ(parsed.sliding_window, 512);
  EXPECT_FALSE(parsed.final_logit_softcap.has_value());
}

TEST(Gemma4Config, SharedTailBorrowsFromTheLastLayerOfItsType) {
  json config = gemma4_json();
  config["num_kv_shared_layers"] = 3;
  config["use_double_wide_mlp"] = true;
  config["layer_types"] = {"sliding_attention", "full_attention",    "sliding_attention",
                           "full_attention",    "sliding_attention", "sliding_attention",
                           "full_attention"};
  const Gemma4Config parsed = gemma4(config);
  EXPECT_FALSE(parsed.layers[3].kv_donor.has_value());
  EXPECT_EQ(parsed.layers[4].kv_donor, 2);
  EXPECT_EQ(parsed.layers[5].kv_donor, 2);
  EXPECT_EQ(parsed.layers[6].kv_donor, 3);
  EXPECT_EQ(parsed.layers[3].mlp_width, 96);
  EXPECT_EQ(parsed.layers[4].mlp_width, 192);
}

TEST(Gemma4Config, NestedTextConfigIsTheSame) {
  json nested = {{"model_type", "gemma4"}, {"text_config", gemma4_json()}};
  EXPECT_EQ(gemma4(nested).hidden_size, 64);
  nested["text_config"]["num_attention_heads"] = "four";
  EXPECT_THAT(error_of([&] { gemma4(nested); }),
              testing::HasSubstr("text_config.num_attention_heads"));
}

TEST(Gemma4Config, BadValuesAreRefusedByName) {
  const auto refused = [](const char* key, const json& value, const char* expected) {
    json config = gemma4_json();
    config[key] = value;
    EXPECT_THAT(error_of([&] { gemma4(config); }), testing::HasSubstr(expected)) << key;
  };
  refused("num_hidden_layers", 0, "num_hidden_layers");
  refused("num_hidden_layers", 1 << 30, "num_hidden_layers");
  refused("num_key_value_heads", 3, "4 query heads");
  refused("attention_bias", true, "attention_bias");
  refused("hidden_activation", "silu", "hidden_activation");
  refused("layer_types", {"full_attention"}, "layer_types");
  refused("num_kv_shared_layers", 7, "num_kv_shared_layers");
  refused("use_bidirectional_attention", "all", "use_bidirectional_attention");
  refused("rope_parameters", {{"full_attention", {{"rope_type", "llama3"}}}}, "llama3");
  refused("hidden_size", -64, "hidden_size");
  refused("enable_moe_block", true, "num_experts");
  json vision = gemma4_json();
  vision["use_bidirectional_attention"] = "vision";
  EXPECT_NO_THROW(gemma4(vision));
}

json gemma3_json() {
  return json::parse(R"({
    "model_type": "gemma3_text", "vocab_size": 512, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 96, "num_hidden_layers": 8,
    "query_pre_attn_scalar": 25, "sliding_window": 16})");
}

Gemma3Config gemma3(const json& config) {
  return Gemma3Config::from_json(ConfigReader(config.dump(), "config.json"));
}

TEST(Gemma3Config, ReleaseKeys) {
  json config = gemma3_json();
  config["rope_theta"] = 2e6;
  config["rope_local_base_freq"] = 5e3;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  config["sliding_window_pattern"] = 4;
  const Gemma3Config parsed = gemma3(config);
  EXPECT_EQ(parsed.full_rope.theta, 2e6);
  EXPECT_EQ(parsed.full_rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(parsed.full_rope.factor, 8);
  EXPECT_EQ(parsed.sliding_rope.theta, 5e3);
  EXPECT_EQ(parsed.sliding_rope.type, RopeConfig::Type::kDefault);
  EXPECT_FALSE(parsed.sliding[3]);
  EXPECT_TRUE(parsed.sliding[5]);
  EXPECT_FLOAT_EQ(parsed.attention_scale, 0.2f);
}

TEST(Gemma3Config, TheLastLayerIsNotForcedToFull) { EXPECT_TRUE(gemma3(gemma3_json()).sliding[7]); }

TEST(Gemma3Config, MixedRopeKeysAreMergedEntryFirst) {
  json config = gemma3_json();
  config["rope_theta"] = 2e6;
  config["rope_local_base_freq"] = 5e3;
  config["rope_parameters"] = {
      {"full_attention", {{"rope_type", "default"}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 7e3}}}};
  EXPECT_EQ(gemma3(config).full_rope.theta, 2e6);
  EXPECT_EQ(gemma3(config).sliding_rope.theta, 7e3);
}

}  // namespace
}  // namespace braid

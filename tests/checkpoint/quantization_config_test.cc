#include "checkpoint/quantization_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"

namespace braid {
namespace {

std::optional<QuantizationConfig> read(const std::string& quantization) {
  return QuantizationConfig::read(
      ConfigReader("{\"quantization_config\": " + quantization + "}", "config.json"));
}
std::string packed(const std::string& weights, const std::string& more = "") {
  return R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": )" +
         weights + R"(}}, "ignore": ["lm_head", "re:.*mlp\\.gate$"])" + more + "}";
}
constexpr const char* kFourBits =
    R"({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32})";

TEST(QuantizationConfigTest, PlainCheckpointsHaveNone) {
  EXPECT_FALSE(QuantizationConfig::read(ConfigReader("{}", "config.json")));
  EXPECT_FALSE(read("null"));
}

TEST(QuantizationConfigTest, ReadsCompressedTensors) {
  const auto config = read(packed(kFourBits));
  ASSERT_TRUE(config);
  EXPECT_EQ(config->method(), QuantizationConfig::Method::kCompressedTensors);
  EXPECT_EQ(config->group_size(), 32);
  EXPECT_EQ(config->kv_cache().kind, KvCacheScheme::Kind::kNone);
  // Names are whole paths, whatever stands before them; patterns hold from the beginning.
  EXPECT_TRUE(config->covers("model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(config->covers("model.layers.0.mlp.gate"));
  EXPECT_FALSE(config->covers("lm_head"));
  EXPECT_FALSE(config->covers("model.lm_head"));
  EXPECT_TRUE(config->covers("model.my_lm_head"));
  const auto nested = QuantizationConfig::read(ConfigReader(
      "{\"text_config\": {\"quantization_config\": " + packed(kFourBits) + "}}", "config.json"));
  EXPECT_TRUE(nested);
  EXPECT_TRUE(
      read(packed(kFourBits, R"(, "kv_cache_scheme": {"num_bits": 8})"))->kv_cache().is_int8());
}

TEST(QuantizationConfigTest, ReadsGptq) {
  const auto v1 = read(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false,
    "dynamic": {"-:.*\\.o_proj": {}, "+:.*q_proj": {"bits": 8}}})");
  ASSERT_TRUE(v1);
  EXPECT_EQ(v1->method(), QuantizationConfig::Method::kGptq);
  EXPECT_TRUE(v1->zeros_less_one());
  EXPECT_EQ(v1->group_size(), 128);
  EXPECT_TRUE(v1->covers("model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(v1->covers("model.layers.0.self_attn.o_proj"));
  const auto v2 = read(R"({"quant_method": "gptq", "bits": 8, "group_size": -1,
    "checkpoint_format": "gptq_v2"})");
  EXPECT_FALSE(v2->zeros_less_one());
  EXPECT_EQ(v2->group_size(), 0);
  EXPECT_TRUE(read(R"({"quant_method": "auto-round", "bits": 4, "group_size": 128,
    "packing_format": "auto_round:auto_gptq"})")
                  ->zeros_less_one());
}

// What braid would compute wrongly is refused by the name of its field.
TEST(QuantizationConfigTest, RefusesWhatIsNotSupported) {
  const auto expect_refused = [](const std::string& quantization, const std::string& field) {
    testing::expect_error([&] { read(quantization); },
                          {"config.json: quantization_config." + field + ":"});
  };
  expect_refused(R"({"quant_method": "awq", "bits": 4})", "quant_method");
  expect_refused(R"({"quant_method": "compressed-tensors", "format": "float-quantized"})",
                 "format");
  const std::string weights = "config_groups.group_0.weights.";
  expect_refused(packed(R"({"num_bits": 3})"), weights + "num_bits");
  expect_refused(packed(R"({"num_bits": 4, "type": "float"})"), weights + "type");
  expect_refused(packed(R"({"num_bits": 4, "strategy": "block"})"), weights + "strategy");
  expect_refused(packed(R"({"num_bits": 8, "dynamic": true})"), weights + "dynamic");
  const auto with_inputs = [&](const std::string& inputs) {
    return packed(kFourBits + std::string(", \"input_activations\": ") + inputs);
  };
  const std::string inputs = "config_groups.group_0.input_activations.";
  expect_refused(with_inputs(R"({"num_bits": 8, "dynamic": false})"), inputs + "dynamic");
  expect_refused(with_inputs(R"({"num_bits": 4, "dynamic": true})"), inputs + "num_bits");
  expect_refused(with_inputs(R"({"num_bits": 8, "type": "float", "dynamic": true})"),
                 inputs + "num_bits");
  expect_refused(with_inputs(R"({"num_bits": 8, "dynamic": true, "symmetric": false})"),
                 inputs + "symmetric");
  expect_refused(packed(kFourBits, R"(, "sparsity_config": {"format": "sparse-bitmask"})"),
                 "sparsity_config.format");
  expect_refused(packed(kFourBits, R"(, "transform_config": {"config_groups": {"R1": {}}})"),
                 "transform_config.config_groups");
  expect_refused(R"({"quant_method": "gptq"})", "bits");
  expect_refused(R"({"quant_method": "gptq", "bits": 3})", "bits");
  expect_refused(R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})",
                 "checkpoint_format");
  expect_refused(R"({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:awq"})",
                 "packing_format");
}

// A pattern that cannot be read, or takes for ever, costs nothing but its warning.
TEST(QuantizationConfigTest, SurvivesBadPatterns) {
  const auto config = read(R"({"quant_method": "compressed-tensors", "config_groups": {"g":
    {"targets": ["re:(", "re:(a+)+$"], "weights": {"num_bits": 8}}}})");
  EXPECT_FALSE(config->covers(std::string(60, 'a') + "b"));
}

}  // namespace
}  // namespace braid

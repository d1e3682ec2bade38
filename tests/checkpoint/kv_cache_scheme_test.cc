#include "checkpoint/kv_cache_scheme.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "checkpoint/expect_error.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors_builder.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using Kind = KvCacheScheme::Kind;
using testing::SafetensorsBuilder;
using testing::TempFolder;

KvCacheScheme read(const std::string& scheme) {
  return KvCacheScheme::read(ConfigReader(R"({"kv_cache_scheme": )" + scheme + "}", "config.json"));
}

TEST(KvCacheSchemeTest, TellsWhatBraidHas) {
  EXPECT_EQ(read("null").kind, Kind::kNone);
  EXPECT_EQ(KvCacheScheme::read(ConfigReader("{}", "config.json")).kind, Kind::kNone);
  // As compressed-tensors writes it, and with the defaults of its fields.
  EXPECT_EQ(read(R"({"actorder": null, "block_structure": null, "dynamic": false,
    "group_size": null, "num_bits": 8, "observer": "minmax", "observer_kwargs": {},
    "strategy": "tensor", "symmetric": true, "type": "int"})")
                .kind,
            Kind::kStaticInt8);
  EXPECT_EQ(read(R"({"num_bits": 8})").kind, Kind::kStaticInt8);
  for (const char* strategy : {"token", "attn_head", "tensor"}) {
    const KvCacheScheme scheme = read(R"({"num_bits": 8, "type": "int", "dynamic": true,
      "strategy": ")" + std::string(strategy) +
                                      "\"}");
    EXPECT_EQ(scheme.kind, Kind::kDynamicInt8) << strategy;
    EXPECT_TRUE(scheme.is_int8());
  }
}

TEST(KvCacheSchemeTest, NamesWhatItHasNot) {
  const auto expect_other = [](const char* scheme, const char* what) {
    const KvCacheScheme read_scheme = read(scheme);
    EXPECT_EQ(read_scheme.kind, Kind::kOther) << scheme;
    EXPECT_EQ(read_scheme.other, what);
    EXPECT_FALSE(read_scheme.is_int8());
  };
  expect_other(R"({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false})",
               "type float");
  expect_other(R"({"num_bits": 4})", "num_bits 4");
  expect_other(R"({"num_bits": 8, "symmetric": false})", "symmetric false");
  expect_other(R"({"num_bits": 8, "strategy": "attn_head"})", "strategy attn_head");
  expect_other(R"({"num_bits": 8, "strategy": "channel", "dynamic": false})", "strategy channel");
  expect_other(R"({"num_bits": 8, "dynamic": "local"})", "dynamic local");
}

TEST(KvCacheSchemeTest, FieldsOfTheWrongTypeAreErrors) {
  testing::expect_error([] { read(R"({"num_bits": "8"})"); },
                        {"config.json: kv_cache_scheme.num_bits"});
  testing::expect_error([] { read(R"({"dynamic": 1})"); },
                        {"config.json: kv_cache_scheme.dynamic"});
  testing::expect_error([] { read("8"); }, {"config.json: kv_cache_scheme"});
}

// The files of a checkpoint with such a scheme (empty: without quantization_config).
class KvScaleFilesTest : public ::testing::Test {
 protected:
  struct Part {
    std::string name, dtype, bytes;
    std::vector<int64_t> shape = {1};
  };
  std::set<std::string> names(const std::string& scheme, const std::vector<Part>& parts) {
    std::string config = R"({"model_type": "gemma3_text")";
    if (!scheme.empty()) {
      config += R"(, "quantization_config": {"quant_method": "compressed-tensors",
        "format": "dense", "kv_cache_scheme": )" +
                scheme + "}";
    }
    folder_.write("config.json", config + "}");
    SafetensorsBuilder builder;
    for (const Part& part : parts) {
      builder.add(part.name, part.dtype, part.shape, part.bytes);
    }
    folder_.write("model.safetensors", builder.build());
    const ModelFiles files = ModelFiles::open(folder_.path());
    scheme_ = files.kv_cache().kind;
    std::set<std::string> found;
    for (const auto& [name, tensor] : files.weights().tensors()) found.insert(name);
    return found;
  }

  const std::string one_ = std::string("\0\0\x80\x3f", 4);  // float32
  const std::string static_ = R"({"num_bits": 8, "type": "int", "strategy": "tensor"})";
  TempFolder folder_;
  Kind scheme_ = Kind::kNone;
};

TEST_F(KvScaleFilesTest, StaticOnesStayUnderOneName) {
  EXPECT_EQ(
      names(static_, {{"m.layers.0.self_attn.k_scale", "F32", one_},
                      {"m.layers.0.self_attn.v_scale", "F32", one_},
                      {"m.layers.0.self_attn.k_zero_point", "I8", std::string(1, '\0')},
                      {"m.layers.1.self_attn.k_proj.output_scale", "F32", one_, {}},
                      {"m.layers.1.self_attn.v_proj.output_scale", "F32", one_}}),
      (std::set<std::string>{"m.layers.0.self_attn.k_scale", "m.layers.0.self_attn.v_scale",
                             "m.layers.1.self_attn.k_scale", "m.layers.1.self_attn.v_scale"}));
  EXPECT_EQ(scheme_, Kind::kStaticInt8);
}

TEST_F(KvScaleFilesTest, OfAnotherKindAreDropped) {
  const std::vector<Part> parts = {{"m.layers.0.self_attn.k_scale", "F32", one_},
                                   {"m.layers.0.self_attn.v_scale", "F32", one_},
                                   {"m.layers.0.x", "F32", one_}};
  const std::set<std::string> rest = {"m.layers.0.x"};
  EXPECT_EQ(names("", parts), rest);
  EXPECT_EQ(scheme_, Kind::kNone);
  EXPECT_EQ(names("null", parts), rest);
  EXPECT_EQ(names(R"({"num_bits": 8, "type": "float"})", parts), rest);
  EXPECT_EQ(scheme_, Kind::kOther);
  EXPECT_EQ(names(R"({"num_bits": 8, "dynamic": true, "strategy": "token"})", parts), rest);
  EXPECT_EQ(scheme_, Kind::kDynamicInt8);
}

TEST_F(KvScaleFilesTest, StaticSchemesNeedScalesWithoutZeroPoints) {
  testing::expect_error(
      [&] {
        names(static_, {{"m.layers.0.x", "F32", one_}});
      },
      {"kv_cache_scheme is static", "no scales"});
  testing::expect_error(
      [&] {
        names(static_, {{"m.layers.0.self_attn.k_scale", "F32", one_},
                        {"m.layers.0.self_attn.v_scale", "F32", one_},
                        {"m.layers.0.self_attn.v_zero_point", "I8", "\x01"}});
      },
      {"model.safetensors: tensor m.layers.0.self_attn.v_zero_point: zero points"});
  testing::expect_error(
      [&] {
        names(static_, {{"m.self_attn.k_scale", "F32", one_},
                        {"m.self_attn.k_proj.output_scale", "F32", one_}});
      },
      {"m.self_attn.k_scale"});
}

}  // namespace
}  // namespace braid

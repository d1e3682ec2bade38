#include <fstream>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "models/binding_test.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

class GemmaBindingTest : public BindingTest {
 protected:
  GemmaBindingTest() : BindingTest("gemma4_moe") {}
};

TEST_F(GemmaBindingTest, CompleteCheckpointIsConsumedWhole) {
  write_weights([](auto&) {});
  ModelFiles files = ModelFiles::open(folder_);
  const auto model = load_model(files);
  EXPECT_EQ(model->load_report().num_consumed, model->load_report().num_tensors);
  EXPECT_EQ(model->load_report().num_ignored, 0);
}

TEST_F(GemmaBindingTest, MissingTensorsAreAllNamed) {
  write_weights([](auto& tensor) {
    if (tensor.name.find("layers.1.router.scale") != std::string::npos ||
        tensor.name.find("layers.0.layer_scalar") != std::string::npos) {
      tensor.name.clear();
    }
  });
  const std::string error = load_error();
  EXPECT_THAT(error, ::testing::HasSubstr("layers.1.router.scale"));
  EXPECT_THAT(error, ::testing::HasSubstr("layers.0.layer_scalar"));
}

TEST_F(GemmaBindingTest, UnknownTensorIsNamedWithItsFile) {
  write_weights([](auto&) {}, {{"model.layers.0.self_attn.q_proj.bias", DType::kBF16, {64}}});
  const std::string error = load_error();
  EXPECT_THAT(error, ::testing::HasSubstr("q_proj.bias"));
  EXPECT_THAT(error, ::testing::HasSubstr("model.safetensors"));
}

TEST_F(GemmaBindingTest, MisshapenTensorIsNamedWithBothShapes) {
  write_weights([](auto& tensor) {
    if (tensor.name.ends_with("layers.0.mlp.up_proj.weight")) {
      tensor.shape = Shape{tensor.shape.dim(1), tensor.shape.dim(0)};
    }
  });
  EXPECT_THAT(load_error(), ::testing::HasSubstr("layers.0.mlp.up_proj.weight"));
}

TEST_F(GemmaBindingTest, UnknownFamilyListsTheKnownOnes) {
  write_weights([](auto&) {});
  auto config = nlohmann::json::parse(read_file(folder_ / "config.json"));
  config["model_type"] = "llama";
  std::ofstream(folder_ / "config.json") << config;
  EXPECT_THAT(load_error(), ::testing::AllOf(::testing::HasSubstr("'llama'"),
                                             ::testing::HasSubstr("gemma4_text")));
}

TEST(DummyWeights, EveryFamilyLoadsWithoutAFile) {
  for (const char* name : {"gemma3", "gemma4_moe", "gemma4_e2b", "qwen3_next", "qwen3_next_mixed",
                           "qwen3_5", "qwen3_5_nested", "qwen3_5_moe"}) {
    ModelFiles files =
        ModelFiles::open(fs::path(BRAID_TEST_DATA) / "models" / name, /*with_weights=*/false);
    files.weights() = WeightMap::dummy(1, quant_format(FormatId::kBF16));
    EXPECT_GT(load_model(files)->load_report().num_parameters, 0) << name;
  }
}

}  // namespace
}  // namespace braid

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/safetensors_writer.h"
#include "models/registry.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

// Copies of a tiny checkpoint with one thing wrong must be refused, and the message must name it.
class GemmaBindingTest : public testing::Test {
 protected:
  void SetUp() override {
    source_ = fs::path(BRAID_TEST_DATA) / "models/gemma4_moe";
    folder_ = fs::path(testing::TempDir()) /
              ("braid_binding_" +
               std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy(source_ / "config.json", folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Rewrites the weights, each tensor as `edit` leaves its name and shape (empty name: dropped).
  template <typename Edit>
  void write_weights(Edit edit, const std::vector<SafetensorsWriter::Declaration>& extra = {}) {
    const WeightMap weights = ModelFiles::open(source_).weights();
    std::vector<SafetensorsWriter::Declaration> declarations = extra;
    std::vector<const StoredTensor*> sources(extra.size(), nullptr);
    for (const auto& [name, tensor] : weights.tensors()) {
      SafetensorsWriter::Declaration declaration{name, DType::kBF16, tensor.weight.shape};
      edit(declaration);
      if (declaration.name.empty()) continue;
      declarations.push_back(declaration);
      sources.push_back(&tensor);
    }
    SafetensorsWriter writer(folder_ / "model.safetensors", declarations);
    for (size_t i = 0; i < declarations.size(); ++i) {
      const size_t bytes =
          declarations[i].shape.num_elements() * dtype_bytes(declarations[i].dtype);
      if (sources[i] != nullptr) {
        writer.write(declarations[i].name, std::span(sources[i]->weight.data, bytes));
      } else {
        writer.write(declarations[i].name,
                     std::span<const std::byte>(std::vector<std::byte>(bytes)));
      }
    }
    writer.finish();
  }

  std::string load_error() {
    try {
      ModelFiles files = ModelFiles::open(folder_);
      load_model(files);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path source_, folder_;
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
  EXPECT_THAT(error, testing::HasSubstr("layers.1.router.scale"));
  EXPECT_THAT(error, testing::HasSubstr("layers.0.layer_scalar"));
}

TEST_F(GemmaBindingTest, UnknownTensorIsNamedWithItsFile) {
  write_weights([](auto&) {}, {{"model.layers.0.self_attn.q_proj.bias", DType::kBF16, {64}}});
  const std::string error = load_error();
  EXPECT_THAT(error, testing::HasSubstr("q_proj.bias"));
  EXPECT_THAT(error, testing::HasSubstr("model.safetensors"));
}

TEST_F(GemmaBindingTest, MisshapenTensorIsNamedWithBothShapes) {
  write_weights([](auto& tensor) {
    if (tensor.name.ends_with("layers.0.mlp.up_proj.weight")) {
      tensor.shape = Shape{tensor.shape.dim(1), tensor.shape.dim(0)};
    }
  });
  EXPECT_THAT(load_error(), testing::HasSubstr("layers.0.mlp.up_proj.weight"));
}

TEST_F(GemmaBindingTest, UnknownFamilyListsTheKnownOnes) {
  write_weights([](auto&) {});
  auto config = nlohmann::json::parse(read_file(folder_ / "config.json"));
  config["model_type"] = "llama";
  std::ofstream(folder_ / "config.json") << config;
  EXPECT_THAT(load_error(),
              testing::AllOf(testing::HasSubstr("'llama'"), testing::HasSubstr("gemma4_text")));
}

TEST(DummyWeights, EveryFamilyLoadsWithoutAFile) {
  for (const char* name : {"gemma3", "gemma4_moe", "gemma4_e2b"}) {
    ModelFiles files =
        ModelFiles::open(fs::path(BRAID_TEST_DATA) / "models" / name, /*with_weights=*/false);
    files.weights() = WeightMap::dummy(1, quant_format(FormatId::kBF16));
    EXPECT_GT(load_model(files)->load_report().num_parameters, 0) << name;
  }
}

}  // namespace
}  // namespace braid

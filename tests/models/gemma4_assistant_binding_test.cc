#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "models/gemma4_assistant.h"
#include "models/registry.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Copies of the tiny assistants with one thing wrong, or beside the wrong model, must be refused,
// and the message must name it.
class Gemma4AssistantBindingTest : public ::testing::Test {
 protected:
  static fs::path source(const std::string& name) {
    return fs::path(BRAID_TEST_DATA) / "models" / name;
  }

  // What loading says after `edit` of config.json.
  template <typename Edit>
  std::string error_after(const std::string& name, const std::string& target, Edit edit) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy(source(name) / "model.safetensors", folder_);
    json config = json::parse(read_file(source(name) / "config.json"));
    edit(config);
    std::ofstream(folder_ / "config.json") << config;
    return load_error(folder_, target);
  }
  template <typename Edit>
  std::string error_after(Edit edit) {
    return error_after("gemma4_assistant", "gemma4_dense", edit);
  }
  // The same after `from` became `to`, of the same length, in the weights.
  std::string error_after_patch(const std::string& name, const std::string& target,
                                const std::string& from, const std::string& to) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy(source(name) / "config.json", folder_);
    std::string weights(read_file(source(name) / "model.safetensors"));
    const size_t at = weights.find(from);
    EXPECT_NE(at, std::string::npos);
    weights.replace(at, from.size(), to);
    std::ofstream(folder_ / "model.safetensors", std::ios::binary) << weights;
    return load_error(folder_, target);
  }

  static std::string load_error(const fs::path& path, const std::string& target) {
    ModelFiles target_files = ModelFiles::open(source(target));
    const std::unique_ptr<Model> backbone = load_model(target_files);
    try {
      ModelFiles files = ModelFiles::open(path);
      load_assistant(files, *backbone);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  testing::TempFolder parent_;
  fs::path folder_ = parent_.path() / "assistant";
};

TEST_F(Gemma4AssistantBindingTest, UnchangedCopiesLoad) {
  EXPECT_EQ(error_after([](json&) {}), "no error");
  EXPECT_EQ(error_after("gemma4_assistant_ordered", "gemma4_e2b", [](json&) {}), "no error");
}

TEST_F(Gemma4AssistantBindingTest, ADraftModelIsNoModelOfItsOwn) {
  for (const char* path : {"gemma4_assistant", "gemma4_assistant/gemma4_assistant_bf16.gguf"}) {
    ModelFiles files = ModelFiles::open(source(path));
    try {
      load_model(files);
      FAIL() << path << " loads";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(path), HasSubstr("is a draft model"),
                                      HasSubstr("--speculate assistant:PATH")));
    }
  }
}

TEST_F(Gemma4AssistantBindingTest, AModelOfItsOwnIsNoDraftModel) {
  EXPECT_THAT(load_error(source("gemma4_dense"), "gemma4_dense"),
              AllOf(HasSubstr("'gemma4_text'"), HasSubstr("no draft model")));
}

TEST_F(Gemma4AssistantBindingTest, AnotherModelsAssistantIsRefused) {
  EXPECT_THAT(load_error(source("gemma4_assistant"), "gemma4_e2b"),
              AllOf(HasSubstr("backbone_hidden_size is 80"), HasSubstr("has 48")));
  EXPECT_THAT(error_after("gemma4_assistant_ordered", "gemma4_defaults", [](json&) {}),
              AllOf(HasSubstr("vocab_size is 304"), HasSubstr("has 96")));
}

TEST_F(Gemma4AssistantBindingTest, ShapesThatDoNotFitTheKeysAreNamed) {
  EXPECT_THAT(error_after([](json& c) { c["text_config"]["head_dim"] = 24; }),
              AllOf(HasSubstr("head_dim is 24"), HasSubstr("has 16")));
  EXPECT_THAT(
      error_after([](json& c) { c["text_config"]["per_layer_config"]["3"]["head_dim"] = 16; }),
      AllOf(HasSubstr("head_dim of full layers is 16"), HasSubstr("has 32")));
  EXPECT_THAT(error_after([](json& c) { c["text_config"]["sliding_window"] = 17; }),
              AllOf(HasSubstr("sliding_window is 17"), HasSubstr("has 16")));
  EXPECT_THAT(error_after([](json& c) {
                c["text_config"]["num_attention_heads"] = 3;
                c["text_config"]["num_key_value_heads"] = 1;
              }),
              AllOf(HasSubstr("num_attention_heads is 3"), HasSubstr("2 key-value heads")));
}

TEST_F(Gemma4AssistantBindingTest, AKindOfLayerThatTheTargetLacksIsNamed) {
  EXPECT_EQ(find_kv_donors({{NoCache{}, SharesKvOf{0}}}).sliding, -1);
  const KvDonors donors = find_kv_donors(
      {{WindowKv{1, 16, 8}, FullKv{1, 16}, WindowKv{1, 16, 8}, NoCache{}, SharesKvOf{1}}});
  EXPECT_EQ(donors.sliding, 2);
  EXPECT_EQ(donors.full, 1);
}

TEST_F(Gemma4AssistantBindingTest, WhatIsNotImplementedIsRefused) {
  EXPECT_THAT(error_after([](json& c) { c["text_config"]["num_kv_shared_layers"] = 2; }),
              HasSubstr("num_kv_shared_layers is 2"));
  EXPECT_THAT(error_after([](json& c) { c["text_config"]["hidden_size_per_layer_input"] = 16; }),
              HasSubstr("hidden_size_per_layer_input"));
  EXPECT_THAT(error_after([](json& c) {
                c["text_config"].update({{"enable_moe_block", true},
                                         {"num_experts", 4},
                                         {"top_k_experts", 2},
                                         {"moe_intermediate_size", 16}});
              }),
              HasSubstr("enable_moe_block"));
  EXPECT_THAT(error_after([](json& c) { c["text_config"]["tie_word_embeddings"] = false; }),
              HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(error_after([](json& c) { c["backbone_hidden_size"] = -1; }),
              HasSubstr("backbone_hidden_size"));
}

TEST_F(Gemma4AssistantBindingTest, OrderedHeadsAreChecked) {
  const auto error = [&](const char* field, int64_t value) {
    return error_after("gemma4_assistant_ordered", "gemma4_e2b",
                       [&](json& c) { c[field] = value; });
  };
  EXPECT_THAT(error("num_centroids", 37), HasSubstr("num_centroids is 37"));
  EXPECT_THAT(error("num_centroids", 0), HasSubstr("num_centroids is 0"));
  EXPECT_THAT(error("num_centroids", 19), HasSubstr("masked_embedding.centroids.weight"));
  EXPECT_THAT(error("centroid_intermediate_top_k", 39),
              HasSubstr("centroid_intermediate_top_k is 39"));
  EXPECT_THAT(error("centroid_intermediate_top_k", 0),
              HasSubstr("centroid_intermediate_top_k is 0"));
}

TEST_F(Gemma4AssistantBindingTest, TokenOrdersThatAreNoPermutationAreRefused) {
  const auto id = [](int64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  // Ids above 255 do not occur by chance in the header or, followed by zeros, in the weights.
  EXPECT_THAT(error_after_patch("gemma4_assistant_ordered", "gemma4_e2b", id(300), id(301)),
              HasSubstr("301 occurs twice"));
  EXPECT_THAT(error_after_patch("gemma4_assistant_ordered", "gemma4_e2b", id(300), id(304)),
              HasSubstr("304 is no token"));
  EXPECT_THAT(error_after_patch("gemma4_assistant_ordered", "gemma4_e2b", id(300), id(-1)),
              HasSubstr("-1 is no token"));
  EXPECT_THAT(error_after_patch("gemma4_assistant_ordered", "gemma4_e2b", "\"I64\"", "\"F64\""),
              AllOf(HasSubstr("masked_embedding.token_ordering"), HasSubstr("F64")));
}

TEST_F(Gemma4AssistantBindingTest, MissingAndSurplusTensorsAreNamed) {
  EXPECT_THAT(
      error_after_patch("gemma4_assistant", "gemma4_dense", "pre_projection.weight",
                        "pre_projektion.weight"),
      AllOf(HasSubstr("pre_projection.weight: missing"), HasSubstr("pre_projektion.weight (")));
  // An ordered head's tensors without its switch.
  EXPECT_THAT(error_after("gemma4_assistant_ordered", "gemma4_e2b",
                          [](json& c) { c["use_ordered_embeddings"] = false; }),
              HasSubstr("masked_embedding.centroids.weight"));
}

TEST_F(Gemma4AssistantBindingTest, DummyWeightsLoad) {
  ModelFiles target_files = ModelFiles::open(source("gemma4_e2b"));
  const std::unique_ptr<Model> backbone = load_model(target_files);
  ModelFiles files = ModelFiles::open(source("gemma4_assistant_ordered"), /*with_weights=*/false);
  files.weights() = WeightMap::dummy(1, quant_format(FormatId::kBF16));
  EXPECT_GT(load_assistant(files, *backbone)->load_report().num_parameters, 0);
}

}  // namespace
}  // namespace braid

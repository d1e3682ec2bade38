#include "checkpoint/model_files.h"

#include <gtest/gtest.h>

#include "checkpoint/expect_error.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/safetensors_builder.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::GgufBuilder;
using testing::SafetensorsBuilder;
using testing::TempFolder;

std::string weights() {
  return SafetensorsBuilder().add_f32("model.norm.weight", {1}, {1}).build();
}

void open(const std::filesystem::path& path) { ModelFiles::open(path); }

TEST(ModelFiles, ConfigAndWeightsAreEnough) {
  const TempFolder folder;
  folder.write("config.json", R"({"model_type": "gemma4_text", "eos_token_id": 1})");
  folder.write("model.safetensors", weights());
  ModelFiles files = ModelFiles::open(folder.path());
  EXPECT_FALSE(files.is_gguf());
  EXPECT_EQ(files.model_type(), "gemma4_text");
  EXPECT_EQ(files.origin(), folder.path().string());
  EXPECT_NE(files.weights().find("model.norm.weight"), nullptr);
  EXPECT_EQ(files.tokenizer_json(), std::nullopt);
  EXPECT_EQ(files.tokenizer_config_json(), std::nullopt);
  EXPECT_EQ(files.chat_template(), std::nullopt);
  EXPECT_THAT(files.generation().stop_ids, ElementsAre(1));
  EXPECT_EQ(&files.config().origin(), &files.config().origin());
  EXPECT_EQ(files.text_config().integer("eos_token_id"), 1);
}

TEST(ModelFiles, ConfigAloneIsEnoughWithoutWeights) {
  const TempFolder folder;
  folder.write("config.json",
               R"({"model_type": "gemma3", "text_config": {"num_hidden_layers": 3}})");
  ModelFiles files = ModelFiles::open(folder.path(), false);
  EXPECT_EQ(files.model_type(), "gemma3");
  EXPECT_EQ(files.text_config().integer("num_hidden_layers"), 3);
  EXPECT_EQ(files.weights().size(), 0u);
}

TEST(ModelFiles, ReadsTheWholeFolder) {
  const TempFolder folder;
  folder.write("config.json",
               R"({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text"}})");
  folder.write("generation_config.json", R"({"eos_token_id": [1, 106], "top_k": 64})");
  folder.write("tokenizer.json", "{\"version\": \"1.0\"}");
  // robustness B05a
  folder.write("tokenizer_config.json",
               R"({"extra_special_tokens": ["<a>"], "chat_template": "from config"})");
  folder.write("chat_template.jinja", "from jinja");
  folder.write("model.safetensors", weights());
  const ModelFiles files = ModelFiles::open(folder.path());
  EXPECT_EQ(files.model_type(), "gemma4_text");
  EXPECT_THAT(files.generation().stop_ids, ElementsAre(1, 106));
  EXPECT_EQ(files.generation().top_k, 64);
  EXPECT_EQ(files.tokenizer_json(), "{\"version\": \"1.0\"}");
  EXPECT_EQ(files.chat_template(), "from jinja");
  ASSERT_TRUE(files.tokenizer_config_json().has_value());
}

TEST(ModelFiles, ChatTemplateMayBeInSeveralPlaces) {
  const TempFolder folder;
  folder.write("config.json", R"({"model_type": "gemma3_text"})");
  const auto chat_template = [&] { return ModelFiles::open(folder.path(), false).chat_template(); };
  folder.write("chat_template.json", R"({"chat_template": "processor"})");
  EXPECT_EQ(chat_template(), "processor");
  folder.write("tokenizer_config.json", R"({"chat_template": [
      {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]})");
  EXPECT_EQ(chat_template(), "plain");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "x", "template": "y"}]})");
  EXPECT_EQ(chat_template(), "processor");
  folder.write("tokenizer_config.json", R"({"chat_template": 3})");
  expect_error([&] { chat_template(); }, {"tokenizer_config.json: chat_template", "3"});
  folder.write("tokenizer_config.json", R"({"chat_template": [{"template": "y"}]})");
  expect_error([&] { chat_template(); }, {"tokenizer_config.json: chat_template[0].name"});
}

TEST(ModelFiles, ReadsGguf) {
  const TempFolder folder;
  const std::string bytes = GgufBuilder()
                                .add("general.architecture", "gemma3")
                                .add("tokenizer.ggml.eos_token_id", uint32_t{1})
                                .add("tokenizer.chat_template", "template")
                                .add("vendor.secret", std::vector<float>{1})
                                .tensor_f32("output_norm.weight", {1}, {1})
                                .build();
  for (const char* name : {"m.gguf", "blob"}) {
    ModelFiles files = ModelFiles::open(folder.write(name, bytes));
    EXPECT_TRUE(files.is_gguf());
    EXPECT_EQ(files.model_type(), "gemma3");
    EXPECT_EQ(files.chat_template(), "template");
    EXPECT_THAT(files.generation().stop_ids, ElementsAre(1));
    EXPECT_NE(files.weights().find("output_norm.weight"), nullptr);
    EXPECT_EQ(files.gguf().string("general.architecture"), "gemma3");
  }
  EXPECT_EQ(ModelFiles::open(folder.path() / "m.gguf", false).weights().size(), 0u);
  folder.write("bare.gguf", GgufBuilder().build());
  expect_error([&] { open(folder.path() / "bare.gguf"); }, {"bare.gguf", "general.architecture"});
}

TEST(ModelFiles, PathsThatAreNoModelSayWhatToDo) {
  const TempFolder folder;
  const auto path = folder.path();
  expect_error([&] { open(path / "absent"); }, {"absent", "no such file"});
  expect_error([&] { open(path); }, {path.string(), "empty"});
  expect_error([&] { open(folder.write("model.safetensors", weights())); },
               {"model.safetensors", "give the folder", path.string()});
  expect_error([&] { open(path); }, {path.string(), "no config.json"});
  expect_error([&] { open(folder.write("m.gguf", "")); }, {"m.gguf", "not a GGUF file"});
  expect_error([&] { open(path); }, {"no config.json", "m.gguf"});
  expect_error([&] { open(folder.write("x.bin", "")); }, {"x.bin", "safe_serialization"});
  expect_error([&] { open(folder.write("notes.txt", "hello")); }, {"notes.txt", "neither"});
  expect_error([&] { open(folder.write("config.json", "{}")); }, {"give the folder"});
  expect_error([&] { open(path); }, {"config.json: model_type", "missing"});
  expect_error([&] { open("/dev/null"); }, {"/dev/null", "neither"});
}

TEST(ModelFiles, FolderOfPyTorchWeightsSaysWhatToDo) {
  const TempFolder folder;
  folder.write("config.json", R"({"model_type": "gemma3_text"})");
  folder.write("pytorch_model.bin", "");
  expect_error([&] { open(folder.path()); }, {"pytorch_model.bin", "safe_serialization"});
}

}  // namespace
}  // namespace braid

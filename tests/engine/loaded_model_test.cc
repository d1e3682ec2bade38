#include "engine/loaded_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/gguf_builder.h"
#include "engine/demo_models.h"
#include "engine/end_of_turn.h"
#include "engine/model_tokenizer.h"
#include "engine/tiny_model.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::model_path;
using testing::TempFolder;

template <typename Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void copy_model(const std::string& name, const TempFolder& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(model_path(name))) {
    std::filesystem::copy(entry.path(), folder.path() / entry.path().filename());
  }
}

std::string gemma_tokenizer() {
  return read_file(std::filesystem::path(BRAID_TEST_DATA) / "tokenizer/gemma/tokenizer.json");
}

TEST(LoadedModelTest, SaysWhatIsMissingWhenItIsAskedFor) {
  const LoadedModel model = LoadedModel::load(model_path("gemma4_moe").string());
  EXPECT_FALSE(model.has_tokenizer());
  EXPECT_FALSE(model.has_chat_template());
  EXPECT_THAT(error_of([&] { model.tokenizer(); }), HasSubstr("tokenizer.json"));
  EXPECT_THAT(error_of([&] { model.chat_template(); }), HasSubstr("--chat-template"));
}

TEST(LoadedModelTest, ATemplateThatCannotBeReadConcernsChatsOnly) {
  TempFolder folder;
  copy_model("gemma4_moe", folder);
  folder.write("chat_template.jinja", "{% import 'x' as y %}");
  const LoadedModel model = LoadedModel::load(folder.path().string());
  EXPECT_FALSE(model.has_chat_template());
  EXPECT_THAT(error_of([&] { model.chat_template(); }), HasSubstr("chat template:1"));
}

TEST(LoadedModelTest, TokenizersMayExceedTheModel) {
  TempFolder folder;
  copy_model("gemma4_moe", folder);
  folder.write("tokenizer.json", gemma_tokenizer());
  const LoadedModel model = LoadedModel::load(folder.path().string());
  EXPECT_GT(model.tokenizer().vocab_size(), model.model().vocab_size());
}

TEST(LoadedModelTest, WithoutTokenizerABadOneDoesNotMatter) {
  TempFolder folder;
  copy_model("gemma4_moe", folder);
  folder.write("tokenizer.json", "{}");
  EXPECT_NE(error_of([&] { LoadedModel::load(folder.path().string()); }), "");
  EXPECT_FALSE(
      LoadedModel::load(folder.path().string(), {.with_tokenizer = false}).has_tokenizer());
}

// config.json, generation_config.json, the tokenizer and the template each name another one.
TEST(LoadedModelTest, StopIdsAreTheUnionOfAllSources) {
  TempFolder folder;
  copy_model("gemma4_moe", folder);
  folder.write("tokenizer.json", gemma_tokenizer());
  folder.write("tokenizer_config.json", R"({"eos_token": "<eos>", "bos_token": "<bos>"})");
  std::string config = read_file(folder.path() / "config.json");
  const size_t brace = config.find('{');
  config.insert(brace + 1, "\"eos_token_id\": [7, 106], ");
  // The key must not appear twice.
  if (const size_t old = config.find("\"eos_token_id\"", brace + 40); old != std::string::npos) {
    config.replace(old, std::strlen("\"eos_token_id\""), "\"eos_token_id_was\"");
  }
  folder.write("config.json", config);
  folder.write("generation_config.json", R"({"eos_token_id": 50})");
  folder.write("chat_template.jinja",
               "{{ bos_token }}{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}"
               "<turn|>\n{% endfor %}");
  const LoadedModel model = LoadedModel::load(folder.path().string());
  const std::optional<TokenId> end_of_turn = model.tokenizer().token_id("<turn|>");
  ASSERT_TRUE(end_of_turn) << "the tokenizer of the test has no <turn|>";
  ASSERT_TRUE(model.tokenizer().eos_id());
  const std::vector<int32_t>& ids = model.generation().stop_ids;
  for (const int32_t id : {7, 106, 50, *end_of_turn, *model.tokenizer().eos_id()}) {
    EXPECT_THAT(ids, ::testing::Contains(id));
  }
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

TEST(LoadedModelTest, GgufMetadataNameStopIds) {
  for (const char* name : {"gguf/gemma4_moe_bf16.gguf", "gguf/gemma3_f32.gguf"}) {
    const LoadedModel model = LoadedModel::load(model_path(name).string());
    ASSERT_TRUE(model.tokenizer().eos_id()) << name;
    EXPECT_THAT(model.generation().stop_ids, ::testing::Contains(*model.tokenizer().eos_id()));
  }
}

TEST(LoadedModelTest, GgufFilesMaySayThatTheyHaveNoTokenizer) {
  for (const char* name : {"none", "no_vocab"}) {
    TempFolder folder;
    testing::GgufBuilder gguf;
    gguf.add("general.architecture", "x").add("tokenizer.ggml.model", name);
    EXPECT_EQ(load_tokenizer(ModelFiles::open(folder.write("model.gguf", gguf.build()))), nullptr);
  }
}

TEST(EndOfTurnTest, IsTheMarkerAfterAnAssistantsText) {
  const LoadedModel model = LoadedModel::load(model_path("gguf/gemma4_moe_bf16.gguf").string());
  const Tokenizer& tokenizer = model.tokenizer();
  const auto find = [&](const char* source) {
    return find_end_of_turn(ChatTemplate(source, "test", "<bos>", "<eos>"), tokenizer);
  };
  const char* kTurns = "{% for m in messages %}{{ m.role }}: {{ m.content }}";
  EXPECT_EQ(find((std::string(kTurns) + "<turn|>\n{% endfor %}").c_str()),
            tokenizer.token_id("<turn|>"));
  EXPECT_EQ(find((std::string(kTurns) + "<eos>{% endfor %}").c_str()), tokenizer.eos_id());
  EXPECT_EQ(find((std::string(kTurns) + "\n{% endfor %}").c_str()), std::nullopt);
  EXPECT_EQ(find("no messages"), std::nullopt);
  EXPECT_EQ(find("{{ raise_exception('no') }}"), std::nullopt);
}

TEST(LoadedModelTest, UnknownModelTypesAreOneClearError) {
  TempFolder folder;
  copy_model("gemma4_moe", folder);
  folder.write("config.json", R"({"model_type": "mamba9", "vocab_size": 10})");
  EXPECT_THAT(error_of([&] { LoadedModel::load(folder.path().string()); }),
              ::testing::AllOf(HasSubstr("mamba9"), HasSubstr("not supported"), HasSubstr("gemma4"),
                               ::testing::Not(HasSubstr("\n"))));
}

// The bundled models of a folder of one's own.
TEST(DemoModelsTest, ListsTheSupportedOnes) {
  TempFolder folder;
  for (const char* name : {"one", "two", "other", "no-config"}) {
    std::filesystem::create_directory(folder.path() / name);
  }
  folder.write("one/config.json", R"({"model_type": "gemma4_text"})");
  folder.write("two/config.json", R"({"model_type": "gemma3_text"})");
  folder.write("other/config.json", R"({"model_type": "mamba9"})");
  const char* previous = std::getenv("BRAID_DEMO_MODELS");
  const std::string saved = previous != nullptr ? previous : "";
  setenv("BRAID_DEMO_MODELS", folder.path().c_str(), 1);
  EXPECT_EQ(std::filesystem::canonical(resolve_model("demo:two")),
            std::filesystem::canonical(folder.path() / "two"));
  EXPECT_EQ(resolve_model("some/path"), "some/path");
  const std::vector<std::string> names = demo_model_names();
  EXPECT_THAT(names, ::testing::IsSupersetOf({"one", "two"}));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("other")));
  for (const char* name : {"demo:", "demo:nowhere", "demo:../one", "demo:no-config"}) {
    EXPECT_THAT(error_of([&] { resolve_model(name); }), HasSubstr("demo:one")) << name;
  }
  if (previous != nullptr) {
    setenv("BRAID_DEMO_MODELS", saved.c_str(), 1);
  } else {
    unsetenv("BRAID_DEMO_MODELS");
  }
}

}  // namespace
}  // namespace braid

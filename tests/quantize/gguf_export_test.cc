#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "convert/hf_folder.h"
#include "engine/model_tokenizer.h"
#include "models/registry.h"
#include "quant/panels.h"
#include "quantize/inputs.h"
#include "quantize/model_values.h"
#include "quantize/quantizer.h"
#include "quantize/report.h"
#include "quantize/routing.h"
#include "support/fresh_seed.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using testing::logits_of;
using testing::values_of;

namespace fs = std::filesystem;
using testing::demo;
using ::testing::HasSubstr;
using testing::random_ids;
using testing::tiny;

QuantizeOptions gguf_options(const std::string& scheme,
                             QuantizeMethod method = QuantizeMethod::kNearest) {
  QuantizeOptions options;
  options.recipe.scheme = scheme;
  options.recipe.gguf = true;
  options.file_format = QuantizedFileFormat::kGguf;
  options.method = method;
  return options;
}

class GgufExportTest : public ::testing::Test {
 protected:
  fs::path out() const { return folder_.path() / "model.gguf"; }
  void write(const fs::path& model, const QuantizeOptions& options,
             const CalibrationTokens& calibration = {}) {
    fs::remove(out());
    result_ = quantize_model(model, out(), calibration, pool_, options);
  }
  std::string error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  nlohmann::json report() const {
    return nlohmann::json::parse(read_file(gguf_report_path(out(), ".json")));
  }
  // Gemma 3 with rows of 64 values, at an attention scale that GGUF can say.
  fs::path gemma3_of_64() const {
    const fs::path copy = folder_.path() / "gemma3";
    fs::create_directory(copy);
    fs::copy_file(tiny("gemma3_linear/model.safetensors"), copy / "model.safetensors");
    auto config = nlohmann::json::parse(read_file(tiny("gemma3_linear/config.json")));
    config["query_pre_attn_scalar"] = config["head_dim"];
    std::ofstream(copy / "config.json") << config.dump();
    return copy;
  }
  // Of all quantised weights, relative.
  double weight_error() const {
    double sum = 0;
    int64_t parameters = 0;
    const nlohmann::json facts = report();
    for (const auto& tensor : facts["tensors"]) {
      if (!tensor.contains("weight_error")) continue;
      int64_t size = 1;
      for (const int64_t n : tensor["shape"]) size *= n;
      sum += tensor["weight_error"].get<double>() * static_cast<double>(size);
      parameters += size;
    }
    return sum / static_cast<double>(parameters);
  }

  testing::TempFolder folder_;
  testing::FreshRandom random_;
  ThreadPool pool_{{.num_threads = 2}};
  QuantizeResult result_;
};

struct Pair {
  const char* folder;
  const char* gguf;  // by tools/goldens/make_gguf.py and make_qwen_gguf.py, of the same weights
  const char* scheme;
};
constexpr Pair kPairs[] = {
    {"gemma3", "gemma3_f32.gguf", "f32"},
    {"gemma4_dense", "gemma4_dense_bf16-00001-of-00002.gguf", "bf16"},
    {"gemma4_moe", "gemma4_moe_bf16.gguf", "bf16"},
    {"gemma4_e2b", "gemma4_e2b_bf16.gguf", "bf16"},
    {"qwen3_next", "qwen3_next_mtp_bf16.gguf", "bf16"},
    {"qwen3_next_idle_experts", "qwen3_next_idle_experts_f32.gguf", "f32"},
    {"qwen3_5_nested", "qwen3_5_mtp_bf16.gguf", "bf16"},
};

TEST_F(GgufExportTest, NamesShapesValuesAndSizesAreThoseOfAnIndependentConverter) {
  for (const Pair& pair : kPairs) {
    SCOPED_TRACE(pair.folder);
    write(tiny(pair.folder), gguf_options(pair.scheme));
    const auto ours = GgufFile::open(out());
    const auto theirs = GgufFile::open(tiny("gguf") / pair.gguf);
    std::map<std::string, const StoredTensor*> by_name;
    for (const StoredTensor& tensor : ours->tensors) by_name[tensor.name] = &tensor;
    EXPECT_EQ(ours->tensors.size(), theirs->tensors.size());
    for (const StoredTensor& tensor : theirs->tensors) {
      const auto found = by_name.find(tensor.name);
      ASSERT_NE(found, by_name.end()) << tensor.name;
      ASSERT_EQ(found->second->weight.shape, tensor.weight.shape) << tensor.name;
      const std::vector<float> a = values_of(found->second->weight), b = values_of(tensor.weight);
      for (size_t i = 0; i < a.size(); ++i) {
        // Exponentials may differ in the last place.
        const float room = tensor.name.ends_with("ssm_a")
                               ? 4 * std::numeric_limits<float>::epsilon() * std::abs(b[i])
                               : 0;
        ASSERT_NEAR(a[i], b[i], room) << tensor.name << " " << i;
      }
    }
    const std::string prefix = theirs->metadata.string("general.architecture") + ".";
    for (const auto& [key, value] : theirs->metadata.values) {
      if (!key.starts_with(prefix)) continue;
      ASSERT_TRUE(ours->metadata.has(key)) << key;
      EXPECT_TRUE(ours->metadata.values.find(key)->second == value) << key;
    }
  }
}

TEST_F(GgufExportTest, LogitsStay) {
  for (const char* name :
       {"gemma3", "gemma3_nested", "gemma4_dense", "gemma4_e2b", "gemma4_e4b", "gemma4_moe",
        "gemma4_nested", "gemma4_defaults", "gemma4_sharded", "qwen3_next", "qwen3_next_mixed",
        "qwen3_next_unnormed", "qwen3_5", "qwen3_5_nested", "qwen3_5_moe", "qwen3_5_moe_split"}) {
    SCOPED_TRACE(name);
    ModelFiles source = ModelFiles::open(tiny(name));
    const std::unique_ptr<Model> model = load_model(source);
    // As the source has them.
    const Weight& embedding = source.weights().find("embed_tokens.weight")->weight;
    write(tiny(name), gguf_options(std::string(embedding.format->name)));
    ModelFiles files = ModelFiles::open(out());
    const std::unique_ptr<Model> exported = load_model(files);
    // Orders of sums differ where heads are in another order: a rounding a term and layer.
    const auto hidden = static_cast<double>(embedding.cols());
    const double allowed =
        std::numeric_limits<float>::epsilon() * hidden * static_cast<double>(model->num_layers());
    // A rounding may send a token to another expert where two are equally good.
    std::vector<int32_t> ids;
    do {
      ids = random_ids(90, 40, random_);
    } while (!testing::same_routing(testing::routing_of(source, *model, ids),
                                    testing::routing_of(files, *exported, ids), allowed) &&
             !HasFailure());
    const std::vector<float> a = logits_of(*model, ids), b = logits_of(*exported, ids);
    ASSERT_EQ(a.size(), b.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
      norm += double{a[i]} * a[i];
    }
    EXPECT_LT(std::sqrt(error / norm), allowed);
  }
}

TEST_F(GgufExportTest, TokenizersAndTemplatesStay) {
  const std::string text =
      read_file(demo("heldout/heldout.txt")).substr(0, 20'000) +
      "\n\n\n  Tabs\tand   spaces, é ü 日本 🙂 <b> 12345 it's\r\n<eos><|im_end|><turn|>";
  for (const char* name : {"gemma4", "gemma4-dense", "qwen3next"}) {
    SCOPED_TRACE(name);
    write(demo(name), gguf_options("q8_0"));
    const ModelFiles folder = ModelFiles::open(demo(name));
    const ModelFiles file = ModelFiles::open(out());
    const std::unique_ptr<Tokenizer> a = load_tokenizer(folder), b = load_tokenizer(file);
    for (const SpecialTokens special : {SpecialTokens::kParse, SpecialTokens::kPlainText}) {
      EXPECT_EQ(a->encode(text, {.special = special}), b->encode(text, {.special = special}));
    }
    if (a->bos_id()) {  // files have default ids where a folder has none
      EXPECT_EQ(a->bos_id(), b->bos_id());
    }
    EXPECT_EQ(a->eos_id(), b->eos_id());
    EXPECT_EQ(a->adds_bos(), b->adds_bos());
    EXPECT_EQ(folder.chat_template(), file.chat_template());
    EXPECT_EQ(folder.generation().stop_ids, file.generation().stop_ids);
    EXPECT_EQ(folder.generation().temperature, file.generation().temperature);
    EXPECT_EQ(folder.generation().top_k, file.generation().top_k);
  }
}

TEST_F(GgufExportTest, MoreBitsLoseLess) {
  std::map<std::string, double> errors;
  for (const char* scheme : {"q4_0", "q4_1", "q4_k_s", "q4_k", "q6_k", "q8_0", "f16"}) {
    write(demo("gemma4-dense"), gguf_options(scheme));
    errors[scheme] = weight_error();
    ModelFiles files = ModelFiles::open(out());
    const std::unique_ptr<Model> model = load_model(files);
    for (const float logit : logits_of(*model, random_ids(8192, 8, random_))) {
      ASSERT_TRUE(std::isfinite(logit)) << scheme;
    }
  }
  EXPECT_LT(errors["q4_1"], errors["q4_0"]);
  EXPECT_LT(errors["q4_k_s"], errors["q4_1"]);
  EXPECT_LT(errors["q4_k"], errors["q4_k_s"]);
  EXPECT_LT(errors["q6_k"], errors["q4_k"] / 3);
  EXPECT_LT(errors["q8_0"], errors["q6_k"] / 2);
  EXPECT_LT(errors["f16"], errors["q8_0"] / 4);
}

TEST_F(GgufExportTest, FilesAreSourcesToo) {
  for (const char* name : {"gemma4_e2b_bf16.gguf", "qwen3_5_moe_mtp_q8_0.gguf",
                           "gemma4_dense_bf16-00001-of-00002.gguf"}) {
    SCOPED_TRACE(name);
    const auto before = GgufFile::open(tiny("gguf") / name);
    for (const char* scheme : {"f32", "q8_0"}) {
      write(tiny("gguf") / name, gguf_options(scheme));
      const auto after = GgufFile::open(out());
      ASSERT_EQ(after->tensors.size(), before->tensors.size());
      std::map<std::string, const StoredTensor*> by_name;
      for (const StoredTensor& tensor : after->tensors) by_name[tensor.name] = &tensor;
      for (const StoredTensor& tensor : before->tensors) {
        const auto found = by_name.find(tensor.name);
        ASSERT_NE(found, by_name.end()) << tensor.name;
        const std::vector<float> values = values_of(found->second->weight),
                                 expected = values_of(tensor.weight);
        if (std::string_view(scheme) == "f32") {
          EXPECT_EQ(values, expected) << tensor.name;
          continue;
        }
        ASSERT_EQ(values.size(), expected.size()) << tensor.name;
        // Half a step of a block, and as much again for the float16 scale.
        const auto cols = static_cast<size_t>(tensor.weight.cols());
        for (size_t i = 0; i < values.size(); ++i) {
          const size_t row = i / cols * cols, block = row + (i - row) / 32 * 32;
          float peak = 0;
          for (size_t j = block; j < std::min(block + 32, row + cols); ++j) {
            peak = std::max(peak, std::fabs(expected[j]));
          }
          ASSERT_NEAR(values[i], expected[i], peak / 127 + 127 * 0x1p-25) << tensor.name;
        }
      }
      EXPECT_FALSE(after->metadata.has("split.count"));
      for (const auto& [key, value] : before->metadata.values) {
        if (!key.starts_with("tokenizer.")) continue;
        ASSERT_TRUE(after->metadata.has(key)) << key;
        EXPECT_TRUE(after->metadata.values.find(key)->second == value) << key;
      }
      ModelFiles files = ModelFiles::open(out());
      EXPECT_NO_THROW(load_model(files));
    }
  }
}

// Gemma 3: from a GGUF file to a folder, which is then the model that the folder it came from
// gives.
TEST_F(GgufExportTest, FilesBecomeFolders) {
  Recipe recipe;
  recipe.rules = {{"*", "keep"}, {"*.o_proj", "w4g32"}};
  QuantizeOptions options;
  options.recipe = recipe;
  options.method = QuantizeMethod::kNearest;
  const fs::path source = gemma3_of_64();
  write(source, gguf_options("bf16"));
  const fs::path direct = folder_.path() / "direct", around = folder_.path() / "around";
  quantize_model(source, direct, {}, pool_, options);
  quantize_model(out(), around, {}, pool_, options);
  ModelFiles a = ModelFiles::open(direct), b = ModelFiles::open(around);
  ASSERT_EQ(a.weights().size(), b.weights().size());
  for (const auto& [name, tensor] : a.weights().tensors()) {
    const StoredTensor* found = b.weights().find(name);
    ASSERT_NE(found, nullptr) << name;
    const std::vector<float> x = values_of(tensor.payload()), y = values_of(found->payload());
    ASSERT_EQ(x.size(), y.size()) << name;
    for (size_t i = 0; i < x.size(); ++i) {
      // Norms went through 1 + w.
      const float room = name.ends_with("norm.weight")
                             ? std::numeric_limits<float>::epsilon() * (1 + std::abs(x[i]))
                             : 0;
      ASSERT_NEAR(x[i], y[i], room) << name;
    }
  }
  const std::unique_ptr<Model> first = load_model(a), second = load_model(b);
  const std::vector<int32_t> ids = random_ids(90, 40, random_);
  const std::vector<float> x = logits_of(*first, ids), y = logits_of(*second, ids);
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    norm += double{x[i]} * x[i];
  }
  EXPECT_LT(std::sqrt(error / norm),
            std::numeric_limits<float>::epsilon() * 80 * static_cast<double>(first->num_layers()));
}

TEST_F(GgufExportTest, TokenizersOfFoldersMadeOfFiles) {
  ModelFiles files = ModelFiles::open(tiny("gguf/gemma3_f32.gguf"));
  const std::unique_ptr<Model> model = load_model(files);
  const std::map<std::string, std::string> texts = hf_folder_texts(files);
  const std::unique_ptr<Tokenizer> a = load_tokenizer(files);
  const std::unique_ptr<Tokenizer> b = make_tokenizer_from_json(
      texts.at("tokenizer.json"), texts.at("tokenizer_config.json"), "tokenizer.json");
  for (const char* text : {"the end and a hen", "  then  another one\n\n",
                           "Ünknown 12 🙂 <eos>x", "thethethe andand on anon"}) {
    EXPECT_EQ(a->encode(text), b->encode(text)) << text;
    EXPECT_EQ(a->decode(a->encode(text)), b->decode(b->encode(text))) << text;
  }
  EXPECT_EQ(a->bos_id(), b->bos_id());
  EXPECT_EQ(a->eos_id(), b->eos_id());
}

// transformers refuses a config whose whole numbers are written as fractions.
TEST_F(GgufExportTest, WholeNumbersOfFoldersMadeOfFilesAreWhole) {
  ModelFiles files = ModelFiles::open(tiny("gguf/gemma3_f32.gguf"));
  const std::unique_ptr<Model> model = load_model(files);
  const auto config = nlohmann::json::parse(hf_folder_texts(files).at("config.json"));
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "query_pre_attn_scalar",
        "sliding_window", "max_position_embeddings", "bos_token_id", "eos_token_id"}) {
    const auto& value = config.at(field);
    EXPECT_TRUE(value.is_number_integer() || value.is_array()) << field << ": " << value.dump();
  }
}

TEST_F(GgufExportTest, GptqRoundsIntoQ4) {
  CalibrationTokens tokens{.length = 48, .sequences = {}};
  for (int i = 0; i < 8; ++i) tokens.sequences.push_back(random_ids(8192, 48, random_));
  for (const char* scheme : {"q4_0", "q4_1"}) {
    write(demo("gemma4-dense"), gguf_options(scheme, QuantizeMethod::kGptq), tokens);
    double nearest = 0, stored = 0;
    const nlohmann::json facts = report();
    for (const auto& tensor : facts["tensors"]) {
      if (!tensor.contains("output_error")) continue;
      nearest += tensor["output_error_rtn"].get<double>();
      stored += tensor["output_error"].get<double>();
    }
    EXPECT_GT(stored, 0) << scheme;
    EXPECT_LT(stored, 0.9 * nearest) << scheme;
    ModelFiles files = ModelFiles::open(out());
    EXPECT_NO_THROW(load_model(files));
  }
}

TEST_F(GgufExportTest, EveryTensorIsAccountedFor) {
  write(tiny("gemma4_nested"), gguf_options("q4_k"));
  const ModelFiles source = ModelFiles::open(tiny("gemma4_nested"));
  const auto file = GgufFile::open(out());
  std::set<std::string> stored;
  int64_t left_out = 0;
  const nlohmann::json facts = report();
  EXPECT_EQ(facts["tensors"].size(), source.weights().size());
  for (const auto& tensor : facts["tensors"]) {
    if (tensor.contains("left_out")) ++left_out;
    EXPECT_NE(tensor.contains("left_out"), tensor.contains("stored_in"));
    for (const auto& name : tensor.value("stored_in", nlohmann::json::array())) stored.insert(name);
  }
  EXPECT_GT(left_out, 0);
  for (const auto& name : facts.value("tensors_added", nlohmann::json::array())) {
    stored.insert(name);
  }
  std::set<std::string> there;
  for (const StoredTensor& tensor : file->tensors) there.insert(tensor.name);
  EXPECT_EQ(stored, there);
}

TEST_F(GgufExportTest, InterruptedWorkIsGoneOnWithToTheSameBytes) {
  QuantizeOptions options = gguf_options("q4_k");
  write(demo("qwen3next"), options);
  const std::string whole = read_file(out());
  fs::remove(out());
  int64_t calls = 0;
  const int64_t stop_at = random_.integer(1, 12);
  options.progress = [&](const QuantizeProgress&) {
    if (calls++ == stop_at) throw Error("interrupted");
  };
  EXPECT_EQ(error_of([&] { quantize_model(demo("qwen3next"), out(), {}, pool_, options); }),
            "interrupted");
  EXPECT_FALSE(fs::exists(out()));
  options.progress = nullptr;
  quantize_model(demo("qwen3next"), out(), {}, pool_, options);
  EXPECT_TRUE(read_file(out()) == whole);
  EXPECT_FALSE(fs::exists(out().string() + ".quantizing"));
  EXPECT_THAT(error_of([&] { quantize_model(demo("qwen3next"), out(), {}, pool_, options); }),
              HasSubstr("already exists"));
}

TEST_F(GgufExportTest, FullDiskIsOneErrorAndLeavesNothingUnderTheFinalName) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1'000'000, .rlim_max = 1'000'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ThreadPool pool({.num_threads = 1});
    int code = 1;
    try {
      quantize_model(demo("gemma4-dense"), out(), {}, pool, gguf_options("q4_0"));
    } catch (const Error& error) {
      code = std::string(error.what()).find("cannot write") == std::string::npos ? 2 : 0;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(fs::exists(out()));
  EXPECT_NO_THROW(write(demo("gemma4-dense"), gguf_options("q4_0")));
}

TEST_F(GgufExportTest, WhatCannotBeDoneIsSaid) {
  EXPECT_THAT(error_of([&] { write(tiny("gemma3_linear"), gguf_options("bf16")); }),
              HasSubstr("cannot say a query_pre_attn_scalar"));
  QuantizeOptions options = gguf_options("w4a16");
  EXPECT_THAT(error_of([&] { write(demo("gemma4"), options); }), HasSubstr("GGUF files have no"));
  options = gguf_options("q4_0");
  options.recipe.rules = {{"mlp", "w4g64"}};
  EXPECT_THAT(error_of([&] { write(demo("gemma4"), options); }), HasSubstr("unknown in GGUF"));
  options.recipe.rules.clear();
  options.recipe.strict = true;
  EXPECT_THAT(error_of([&] { write(tiny("gemma4_dense"), options); }), HasSubstr("do not divide"));
  EXPECT_FALSE(fs::exists(out()));
}

}  // namespace
}  // namespace braid

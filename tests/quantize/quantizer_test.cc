#include "quantize/quantizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_builder.h"
#include "models/registry.h"
#include "quant/panels.h"
#include "quantize/inputs.h"
#include "quantize/model_values.h"
#include "quantize/work_folder.h"
#include "support/fresh_seed.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

using testing::logits_of;
using testing::values_of;

namespace fs = std::filesystem;
using testing::bytes_of_folder;
using testing::demo;
using ::testing::HasSubstr;
using testing::random_tokens;
using testing::tiny;

struct ModelCase {
  fs::path path;
  int64_t vocab;
};
std::vector<ModelCase> models() {
  return {{tiny("gemma4_e4b"), 96}, {tiny("qwen3_5_nested"), 96}, {tiny("qwen3_5_moe"), 96},
          {demo("gemma4"), 8192},   {demo("gemma4-dense"), 8192}, {demo("qwen3next"), 7872}};
}

class QuantizerTest : public ::testing::TestWithParam<ModelCase> {
 protected:
  fs::path out() const { return folder_.path() / "out"; }
  std::string error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  testing::TempFolder folder_;
  testing::FreshRandom random_;
  ThreadPool pool_{{.num_threads = 2}};
};

// Plain rounding, read back from the files, gives the very values of the reference quantisers.
TEST_P(QuantizerTest, NearestReadsBackAsTheReferenceRounds) {
  for (const Recipe& recipe :
       {Recipe{.scheme = "w4a16"}, Recipe{.scheme = "w4a16", .group_size = 32, .asymmetric = true},
        Recipe{.scheme = "w8a8"}, Recipe{.scheme = "w4a16", .head = true}}) {
    fs::remove_all(out());
    const QuantizeResult result = quantize_model(
        GetParam().path, out(), {}, pool_, {.recipe = recipe, .method = QuantizeMethod::kNearest});
    ModelFiles source = ModelFiles::open(GetParam().path);
    ModelFiles quantised = ModelFiles::open(out());
    int64_t compared = 0;
    for (const auto& [name, tensor] : source.weights().tensors()) {
      const StoredTensor* found = quantised.weights().find(name);
      ASSERT_NE(found, nullptr) << name;
      const Weight weight = found->payload();
      ASSERT_EQ(weight.shape, tensor.weight.shape) << name;
      if (found->parts == nullptr) {
        ASSERT_EQ(found->stored_bytes, tensor.stored_bytes);
        ASSERT_EQ(0, std::memcmp(found->weight.data, tensor.weight.data,
                                 static_cast<size_t>(tensor.stored_bytes)));
        continue;
      }
      ++compared;
      std::vector<float> expected = values_of(tensor.weight);
      const int64_t cols = weight.cols();
      std::vector<std::byte> row(static_cast<size_t>(weight.format->row_bytes(cols)));
      for (size_t at = 0; at < expected.size(); at += cols) {
        quantize(*weight.format, expected.data() + at, cols, row.data());
        dequantize(*weight.format, row.data(), cols, expected.data() + at);
      }
      ASSERT_EQ(values_of(weight), expected) << name;
    }
    EXPECT_EQ(compared, result.num_quantised);
    EXPECT_EQ(fs::exists(out().string() + ".quantizing"), false);
    ModelFiles loaded = ModelFiles::open(out());
    EXPECT_NO_THROW(load_model(loaded));
  }
}

// What the layers after a quantised one met while they were calibrated is what a later program
// loads: the logits have the same bits.
TEST_P(QuantizerTest, GptqReadsBackAsItWasInMemory) {
  const CalibrationTokens tokens = random_tokens(GetParam().vocab, 4, 48, random_);
  QuantizeOptions options;
  options.min_inputs_per_column = 0;
  // Stop before anything is published, with all parts kept.
  options.progress = [](const QuantizeProgress& progress) {
    if (progress.phase == "writing") throw Error("stopped");
  };
  EXPECT_EQ(error_of([&] { quantize_model(GetParam().path, out(), tokens, pool_, options); }),
            "stopped");
  EXPECT_FALSE(fs::exists(out()));

  ModelFiles source = ModelFiles::open(GetParam().path);
  const std::unique_ptr<Model> model = load_model(source);
  const std::vector<int32_t> ids = random_tokens(GetParam().vocab, 1, 40, random_).sequences[0];
  const std::vector<float> before = logits_of(*model, ids);
  const fs::path work = out().string() + ".quantizing";
  for (int64_t layer = 0; layer < model->num_layers(); ++layer) {
    const std::string stem = (work / fmt::format("part-{:05}", layer)).string();
    const auto facts = nlohmann::json::parse(read_file(stem + ".json"));
    std::map<std::string, Weight> parts;
    for (const StoredTensor& tensor : read_safetensors(stem + ".safetensors")) {
      Weight weight = tensor.weight;
      weight.format = find_quant_format(facts["tensors"][tensor.name]["format"].get<std::string>());
      weight.shape = source.weights().find(tensor.name)->weight.shape;
      parts.emplace(tensor.name, weight);
    }
    WeightMap map;
    const std::string prefix = fmt::format("layers.{}.", layer);
    for (const auto& [name, tensor] : source.weights().tensors()) {
      if (!name.starts_with(prefix)) continue;
      StoredTensor bound = tensor;
      if (const auto part = parts.find(name); part != parts.end()) bound.weight = part->second;
      map.add(std::move(bound));
    }
    model->rebind_layer(layer, map);
  }
  const std::vector<float> in_memory = logits_of(*model, ids);
  EXPECT_NE(in_memory, before);

  options.progress = nullptr;
  const QuantizeResult result = quantize_model(GetParam().path, out(), tokens, pool_, options);
  EXPECT_EQ(result.times.layers_resumed, model->num_layers());
  ModelFiles quantised = ModelFiles::open(out());
  const std::unique_ptr<Model> loaded = load_model(quantised);
  EXPECT_EQ(logits_of(*loaded, ids), in_memory);
}

// The first matrices meet what they meet in the source, and nothing is to be made up for; later
// ones do.
TEST_P(QuantizerTest, MatchingTheSourceChangesWhatComesAfterLosses) {
  const CalibrationTokens tokens = random_tokens(GetParam().vocab, 4, 48, random_);
  QuantizeOptions options{.recipe = {.group_size = 32}};
  quantize_model(GetParam().path, folder_.path() / "plain", tokens, pool_, options);
  options.match_source = true;
  quantize_model(GetParam().path, out(), tokens, pool_, options);
  ModelFiles plain = ModelFiles::open(folder_.path() / "plain"), matched = ModelFiles::open(out());
  use_canonical_names(plain);
  use_canonical_names(matched);
  int64_t same = 0, different = 0;
  for (const auto& [name, tensor] : plain.weights().tensors()) {
    if (tensor.parts == nullptr) continue;
    const bool equal =
        values_of(tensor.payload()) == values_of(matched.weights().find(name)->payload());
    ++(equal ? same : different);
    if (name.starts_with("layers.0.") &&
        (name.find("q_proj") != name.npos || name.find("in_proj_qkv") != name.npos)) {
      EXPECT_TRUE(equal) << name;
    }
  }
  EXPECT_GT(same, 0);
  EXPECT_GT(different, same / 4);
}

TEST_P(QuantizerTest, GoesOnAfterAnInterruptionToTheSameBytes) {
  const CalibrationTokens tokens = random_tokens(GetParam().vocab, 4, 48, random_);
  QuantizeOptions options;
  options.match_source = random_.integer(0, 1) == 1;
  options.recipe.kv = random_.integer(0, 1) == 1 ? KvRecipe::kInt8Static : KvRecipe::kUnspecified;
  quantize_model(GetParam().path, folder_.path() / "whole", tokens, pool_, options);

  int64_t calls = 0;
  const int64_t stop_at = random_.integer(1, 5);
  options.progress = [&](const QuantizeProgress&) {
    if (calls++ == stop_at) throw Error("interrupted");
  };
  EXPECT_EQ(error_of([&] { quantize_model(GetParam().path, out(), tokens, pool_, options); }),
            "interrupted");
  EXPECT_FALSE(fs::exists(out()));
  options.progress = nullptr;
  const QuantizeResult result = quantize_model(GetParam().path, out(), tokens, pool_, options);
  EXPECT_GT(result.times.layers_resumed, 0);
  EXPECT_EQ(bytes_of_folder(out()), bytes_of_folder(folder_.path() / "whole"));
  EXPECT_FALSE(fs::exists(out().string() + ".quantizing"));
}

INSTANTIATE_TEST_SUITE_P(Models, QuantizerTest, ::testing::ValuesIn(models()),
                         [](const auto& info) {
                           std::string name = info.param.path.filename().string();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class QuantizerFileTest : public QuantizerTest {};
INSTANTIATE_TEST_SUITE_P(Tiny, QuantizerFileTest,
                         ::testing::Values(ModelCase{tiny("qwen3_5_moe"), 96}),
                         [](const auto&) { return "qwen3_5_moe"; });

TEST_P(QuantizerFileTest, ExpertsStackedOrOneByOneAreTheSameModel) {
  const CalibrationTokens tokens = random_tokens(96, 4, 64, random_);
  const std::vector<int32_t> ids = random_tokens(96, 1, 30, random_).sequences[0];
  std::vector<std::vector<float>> logits;
  for (const bool split : {false, true}) {
    fs::remove_all(out());
    QuantizeOptions options;
    options.split_experts = split;
    quantize_model(GetParam().path, out(), tokens, pool_, options);
    ModelFiles files = ModelFiles::open(out());
    logits.push_back(logits_of(*load_model(files), ids));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST_P(QuantizerFileTest, GptqFilesReadBack) {
  const CalibrationTokens tokens = random_tokens(96, 4, 64, random_);
  for (const bool asymmetric : {false, true}) {
    fs::remove_all(out());
    QuantizeOptions options;
    options.recipe = {.group_size = 32, .asymmetric = asymmetric, .half_scales = true};
    options.file_format = QuantizedFileFormat::kGptq;
    options.progress = [](const QuantizeProgress& progress) {
      if (progress.phase == "writing") throw Error("stopped");
    };
    EXPECT_EQ(error_of([&] { quantize_model(GetParam().path, out(), tokens, pool_, options); }),
              "stopped");
    std::map<std::string, std::vector<float>> in_memory;
    for (const fs::directory_entry& entry :
         fs::directory_iterator(out().string() + ".quantizing")) {
      if (entry.path().extension() != ".safetensors") continue;
      fs::path list = entry.path();
      const auto facts = nlohmann::json::parse(read_file(list.replace_extension(".json")));
      for (const StoredTensor& tensor : read_safetensors(entry.path())) {
        Weight weight = tensor.weight;
        const auto& object = facts["tensors"][tensor.name];
        weight.format = find_quant_format(object["format"].get<std::string>());
        const auto sizes = object["shape"].get<std::vector<int64_t>>();
        weight.shape = Shape(std::span<const int64_t>(sizes));
        in_memory[tensor.name] = values_of(weight);
      }
    }
    options.progress = nullptr;
    quantize_model(GetParam().path, out(), tokens, pool_, options);
    ModelFiles files = ModelFiles::open(out());
    EXPECT_NO_THROW(load_model(files));
    int64_t compared = 0;
    for (const auto& [name, tensor] : files.weights().tensors()) {
      const auto found = in_memory.find(name);
      if (found == in_memory.end()) continue;
      EXPECT_EQ(values_of(tensor.payload()), found->second) << name;
      ++compared;
    }
    EXPECT_GT(compared, 0);
  }
}

// B08: some experts meet no token, or a single one.
TEST_P(QuantizerFileTest, StarvedExpertsAreListedAndRoundedToNearest) {
  const CalibrationTokens tokens = random_tokens(96, 1, 4, random_);
  const QuantizeResult result = quantize_model(GetParam().path, out(), tokens, pool_, {});
  EXPECT_GT(result.num_starved, 0);
  const auto report = nlohmann::json::parse(read_file(out() / "report.json"));
  int64_t listed = 0;
  for (const auto& tensor : report["tensors"]) {
    if (!tensor.contains("starved")) continue;
    listed += static_cast<int64_t>(tensor["starved"].size());
    for (const auto& one : tensor["starved"]) {
      EXPECT_LT(one["inputs"].get<int64_t>() * 4, tensor["shape"].back().get<int64_t>());
    }
  }
  EXPECT_EQ(listed, result.num_starved);
  ModelFiles files = ModelFiles::open(out());
  for (const float logit : logits_of(*load_model(files), {1, 2, 3, 4, 5})) {
    ASSERT_TRUE(std::isfinite(logit));
  }
}

TEST_P(QuantizerFileTest, ReportAccountsForEveryTensor) {
  const QuantizeResult result =
      quantize_model(GetParam().path, out(), random_tokens(96, 4, 64, random_), pool_, {});
  const auto report = nlohmann::json::parse(read_file(out() / "report.json"));
  const ModelFiles source = ModelFiles::open(GetParam().path);
  EXPECT_EQ(report["tensors"].size(), source.weights().size());
  int64_t before = 0;
  for (const auto& tensor : report["tensors"]) {
    before += tensor["bytes_before"].get<int64_t>();
    EXPECT_NE(source.weights().find(tensor["name"].get<std::string>()), nullptr);
    if (tensor.contains("output_error")) {
      EXPECT_LE(tensor["output_error"].get<double>(), 1.0);
      EXPECT_GT(tensor["output_error"].get<double>(), 0.0);
    }
  }
  EXPECT_EQ(before, result.bytes_before);
  EXPECT_THAT(read_file(out() / "report.md"), HasSubstr("## Errors"));
}

TEST_P(QuantizerFileTest, LargeModelsAreSharded) {
  QuantizeOptions options;
  options.method = QuantizeMethod::kNearest;
  options.max_shard_bytes = 20'000;
  const QuantizeResult result = quantize_model(GetParam().path, out(), {}, pool_, options);
  EXPECT_GT(result.files.size(), 2u);
  EXPECT_TRUE(fs::exists(out() / "model.safetensors.index.json"));
  ModelFiles files = ModelFiles::open(out());
  EXPECT_NO_THROW(load_model(files));
}

TEST_P(QuantizerFileTest, WeightsThatAreNotFiniteAreNamed) {
  const fs::path copy = folder_.path() / "copy";
  fs::copy(GetParam().path, copy);
  std::string bytes = read_file(copy / "model.safetensors");
  const std::string victim = "model.layers.1.mlp.experts.down_proj";
  for (const StoredTensor& tensor : read_safetensors(copy / "model.safetensors")) {
    if (tensor.name != victim) continue;
    const auto header = static_cast<size_t>(*reinterpret_cast<const uint64_t*>(bytes.data()));
    const auto json = nlohmann::json::parse(bytes.substr(8, header));
    const size_t at = 8 + header + json[victim]["data_offsets"][0].get<size_t>();
    bytes[at] = '\x80', bytes[at + 1] = '\x7f';  // bfloat16 infinity
  }
  std::ofstream(copy / "model.safetensors", std::ios::binary) << bytes;
  const std::string error = error_of(
      [&] { quantize_model(copy, out(), {}, pool_, {.method = QuantizeMethod::kNearest}); });
  EXPECT_THAT(error, HasSubstr("layers.1.mlp.experts.down_proj"));
  EXPECT_THAT(error, HasSubstr("infinite"));
  EXPECT_FALSE(fs::exists(out()));
}

TEST_P(QuantizerFileTest, RefusesWhatIsThereQuantisedOrWithoutCalibration) {
  const QuantizeOptions nearest{.method = QuantizeMethod::kNearest};
  EXPECT_THAT(error_of([&] { quantize_model(GetParam().path, out(), {}, pool_, {}); }),
              HasSubstr("calibration"));
  EXPECT_THAT(error_of([&] { quantize_model(tiny("gemma3_w4a16"), out(), {}, pool_, nearest); }),
              HasSubstr("quantised already"));
  EXPECT_THAT(error_of([&] { quantize_model(tiny("gemma3"), out(), {}, pool_, nearest); }),
              HasSubstr("no multiple of 32"));
  fs::create_directory(out());
  std::ofstream(out() / "something") << "x";
  EXPECT_THAT(error_of([&] { quantize_model(GetParam().path, out(), {}, pool_, nearest); }),
              HasSubstr("already exists"));
}

TEST_P(QuantizerFileTest, OtherOptionsStartAnew) {
  const CalibrationTokens tokens = random_tokens(96, 4, 48, random_);
  QuantizeOptions options;
  options.progress = [](const QuantizeProgress& progress) {
    if (progress.phase == "writing") throw Error("stopped");
  };
  error_of([&] { quantize_model(GetParam().path, out(), tokens, pool_, options); });
  options.progress = nullptr;
  options.recipe.group_size = 32;
  const QuantizeResult result = quantize_model(GetParam().path, out(), tokens, pool_, options);
  EXPECT_EQ(result.times.layers_resumed, 0);
}

// A limit on the size of files has the effect of a full disk.
TEST_P(QuantizerFileTest, FullDiskIsOneErrorAndLeavesNothingUnderTheFinalName) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 30'000, .rlim_max = 30'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ThreadPool pool({.num_threads = 1});
    int code = 1;
    try {
      quantize_model(GetParam().path, out(), {}, pool, {.method = QuantizeMethod::kNearest});
    } catch (const Error& error) {
      code = std::string(error.what()).find("cannot write") == std::string::npos ? 2 : 0;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(fs::exists(out()));
  // With room, the same call ends well.
  EXPECT_NO_THROW(
      quantize_model(GetParam().path, out(), {}, pool_, {.method = QuantizeMethod::kNearest}));
}

TEST_P(QuantizerFileTest, KilledProgramsAreGoneOnWith) {
  const CalibrationTokens tokens = random_tokens(96, 4, 48, random_);
  quantize_model(GetParam().path, folder_.path() / "whole", tokens, pool_, {});
  const pid_t child = ::fork();
  if (child == 0) {
    ThreadPool pool({.num_threads = 1});
    QuantizeOptions options;
    options.progress = [](const QuantizeProgress& progress) {
      if (progress.done > 0) ::kill(::getpid(), SIGKILL);
    };
    quantize_model(GetParam().path, out(), tokens, pool, options);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(out()));
  const QuantizeResult result = quantize_model(GetParam().path, out(), tokens, pool_, {});
  EXPECT_GT(result.times.layers_resumed, 0);
  EXPECT_EQ(bytes_of_folder(out()), bytes_of_folder(folder_.path() / "whole"));
}

}  // namespace
}  // namespace braid

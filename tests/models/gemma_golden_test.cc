#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <ostream>

#include "base/cpu_features.h"
#include "models/golden_file.h"
#include "models/registry.h"
#include "runner/runner.h"
#include "sampling/row_scan.h"

namespace braid {
namespace {

// Against what Hugging Face transformers computes in float32 (tools/goldens/make_gemma.py).

struct GoldenCase {
  const char* model;   // below tests/data/models
  const char* golden;  // likewise
};

std::ostream& operator<<(std::ostream& out, const GoldenCase& golden_case) {
  return out << golden_case.model;
}

const GoldenCase kCases[] = {
    {"gemma3", "gemma3/golden.safetensors"},
    {"gemma3_linear", "gemma3_linear/golden.safetensors"},
    {"gemma3_nested", "gemma3_nested/golden.safetensors"},
    {"gemma4_defaults", "gemma4_defaults/golden.safetensors"},
    {"gemma4_dense", "gemma4_dense/golden.safetensors"},
    {"gemma4_e2b", "gemma4_e2b/golden.safetensors"},
    {"gemma4_e4b", "gemma4_e4b/golden.safetensors"},
    {"gemma4_moe", "gemma4_moe/golden.safetensors"},
    {"gemma4_nested", "gemma4_nested/golden.safetensors"},
    {"gemma4_sharded", "gemma4_sharded/golden.safetensors"},
    {"gguf/gemma3_f32.gguf", "gemma3/golden.safetensors"},
    {"gguf/gemma4_dense_bf16-00001-of-00002.gguf", "gemma4_dense/golden.safetensors"},
    {"gguf/gemma4_e2b_bf16.gguf", "gemma4_e2b/golden.safetensors"},
    {"gguf/gemma4_e4b_q8_0.gguf", "gguf/gemma4_e4b_q8_0.golden.safetensors"},
    {"gguf/gemma4_moe_bf16.gguf", "gemma4_moe/golden.safetensors"},
};

// Norm-wise relative error of float32 evaluation. Each rounding stage (a dot product of length n
// gives √n roundings of one sign or the other) is taken as independent; a layer has about a dozen,
// and both sides round: ε/2 · √(2 · stages · n), with n the longest dot product of these models.
double float32_tolerance(const Model& model) {
  constexpr double kUnitRoundoff = 0x1p-24;
  constexpr double kStagesPerLayer = 12;
  constexpr double kLongestDot = 130;  // an attention row over the longest prompt
  const double stages = kStagesPerLayer * static_cast<double>(model.num_layers() + 1);
  return kUnitRoundoff * std::sqrt(2 * stages * kLongestDot);
}

class HiddenStates : public StepContext::Observer {
 public:
  void layer_output(int64_t, const TensorView& x) override {
    const std::span<float> rows = x.span<float>();
    values.insert(values.end(), rows.begin(), rows.end());
  }
  std::vector<float> values;
};

class GemmaGoldenTest : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    const std::string root = std::string(BRAID_TEST_DATA) + "/models/";
    files_ = std::make_unique<ModelFiles>(ModelFiles::open(root + GetParam().model));
    model_ = load_model(*files_);
    golden_ = std::make_unique<GoldenFile>(root + GetParam().golden);
  }

  // Logits of every token, fed in pieces of `chunk`.
  std::vector<float> logits_of(std::span<const int32_t> ids, int64_t chunk,
                               StepContext::Observer* observer = nullptr) {
    CachePool pool(model_->cache_layout(),
                   {.page_tokens = 8,
                    .max_tokens = static_cast<int64_t>(ids.size()),
                    .max_step_tokens = std::min<int64_t>(chunk, ids.size())});
    Runner runner(*model_, pool, stream_, {.precision = precision_, .workspace_bytes = 1 << 28});
    SequenceState sequence(pool);
    std::vector<float> logits;
    for (size_t begin = 0; begin < ids.size(); begin += chunk) {
      StepPlan plan;
      plan.sequences.push_back({&sequence,
                                ids.subspan(begin, std::min<size_t>(chunk, ids.size() - begin)),
                                WantedLogits::kAll});
      const StepResult result = runner.run(plan, {.observer = observer});
      EXPECT_EQ(result.status, StepStatus::kDone);
      const std::span<float> rows = result.logits.span<float>();
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    return logits;
  }

  std::vector<float> select_rows(const std::vector<float>& logits,
                                 const std::vector<int32_t>& rows) {
    const int64_t vocab = model_->vocab_size();
    std::vector<float> selected;
    for (const int32_t row : rows) {
      selected.insert(selected.end(), logits.begin() + row * vocab,
                      logits.begin() + (row + 1) * vocab);
    }
    return selected;
  }

  ThreadPool threads_{{.num_threads = 2}};
  Stream stream_{threads_};
  ActivationPrecision precision_ = ActivationPrecision::kF32;
  std::unique_ptr<ModelFiles> files_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<GoldenFile> golden_;
};

TEST_P(GemmaGoldenTest, LogitsAgreeAtEveryLength) {
  ASSERT_FALSE(golden_->prompts().empty());
  for (const Isa isa : supported_isas()) {
    force_isa(isa);
    for (const std::string& prompt : golden_->prompts()) {
      const std::vector<float> logits = logits_of(golden_->ints(prompt + ".ids"), 64);
      const double error = relative_error(select_rows(logits, golden_->ints(prompt + ".rows")),
                                          golden_->floats(prompt + ".logits"));
      EXPECT_LT(error, float32_tolerance(*model_)) << prompt << " " << isa_name(isa);
      RecordProperty(prompt + "_" + std::string(isa_name(isa)), std::to_string(error));
    }
  }
}

TEST_P(GemmaGoldenTest, HiddenStatesAgreeAfterEveryLayer) {
  if (!golden_->has("p17.hidden")) GTEST_SKIP() << "this golden holds no hidden states";
  HiddenStates hidden;
  logits_of(golden_->ints("p17.ids"), 64, &hidden);
  const std::vector<float> expected = golden_->floats("p17.hidden");
  ASSERT_EQ(hidden.values.size(), expected.size());
  const size_t layer_size = expected.size() / (model_->num_layers() + 1);
  for (int64_t layer = 0; layer <= model_->num_layers(); ++layer) {
    EXPECT_LT(relative_error({hidden.values.data() + layer * layer_size, layer_size},
                             {expected.data() + layer * layer_size, layer_size}),
              float32_tolerance(*model_))
        << "after layer " << layer - 1;
  }
}

TEST_P(GemmaGoldenTest, ChunksAndSingleTokensGiveTheSameBits) {
  for (const char* prompt : {"p17", "p65"}) {
    const std::vector<int32_t> ids = golden_->ints(std::string(prompt) + ".ids");
    const std::vector<float> whole = logits_of(ids, static_cast<int64_t>(ids.size()));
    for (const int64_t chunk : {1, 7, 16}) {
      EXPECT_EQ(logits_of(ids, chunk), whole) << prompt << " in chunks of " << chunk;
    }
  }
}

TEST_P(GemmaGoldenTest, BatchMatesChangeNothing) {
  const std::vector<int32_t> a = golden_->ints("p17.ids");
  const std::vector<int32_t> b = golden_->ints("p65.ids");
  const std::vector<float> alone_a = logits_of(a, 128);
  const std::vector<float> alone_b = logits_of(b, 128);
  CachePool pool(model_->cache_layout(),
                 {.page_tokens = 8, .max_tokens = 256, .max_sequences = 2, .max_step_tokens = 128});
  Runner runner(*model_, pool, stream_, {.workspace_bytes = 1 << 28});
  SequenceState first(pool), second(pool);
  StepPlan plan;
  plan.sequences.push_back({&first, a, WantedLogits::kAll});
  plan.sequences.push_back({&second, b, WantedLogits::kAll});
  const StepResult result = runner.run(plan);
  const std::span<float> logits = result.logits.span<float>();
  EXPECT_EQ(std::vector<float>(logits.begin(), logits.begin() + alone_a.size()), alone_a);
  EXPECT_EQ(std::vector<float>(logits.begin() + alone_a.size(), logits.end()), alone_b);
}

TEST_P(GemmaGoldenTest, GreedyContinuationsAreTheReferences) {
  for (const std::string& prompt : golden_->prompts()) {
    if (!golden_->has(prompt + ".greedy")) continue;
    std::vector<int32_t> ids = golden_->ints(prompt + ".ids");
    const std::vector<int32_t> expected = golden_->ints(prompt + ".greedy");
    const size_t total = ids.size() + expected.size();
    CachePool pool(model_->cache_layout(), {.page_tokens = 8,
                                            .max_tokens = static_cast<int64_t>(total),
                                            .max_step_tokens = static_cast<int64_t>(ids.size())});
    Runner runner(*model_, pool, stream_, {.workspace_bytes = 1 << 28});
    SequenceState sequence(pool);
    std::vector<int32_t> pending = ids, generated;
    while (generated.size() < expected.size()) {
      StepPlan plan;
      plan.sequences.push_back({&sequence, pending, WantedLogits::kLast});
      const StepResult result = runner.run(plan);
      generated.push_back(argmax(result.logits.span<float>()));
      pending = {generated.back()};
    }
    EXPECT_EQ(generated, expected) << prompt;
  }
}

// The error of the bf16 mode: every matrix input is rounded to 8 bits of mantissa. Rounding errors
// of one input vector average out over a dot product, so each of the stages adds about 2^-9
// norm-wise.
TEST_P(GemmaGoldenTest, Bf16ModeStaysWithinItsBound) {
  precision_ = ActivationPrecision::kBF16;
  constexpr double kUnitRoundoff = 0x1p-9;
  constexpr double kRoundedInputsPerLayer =
      5;  // projections, output, gate and up, down, router or PLE
  const double bound = kUnitRoundoff *
                       std::sqrt(kRoundedInputsPerLayer * (model_->num_layers() + 1)) *
                       std::sqrt(static_cast<double>(model_->num_layers()));
  const std::vector<float> logits = logits_of(golden_->ints("p65.ids"), 128);
  const double error =
      relative_error(select_rows(logits, golden_->ints("p65.rows")), golden_->floats("p65.logits"));
  EXPECT_LT(error, bound);
  EXPECT_GT(error, 0x1p-16) << "bf16 mode seems to round nothing";
}

std::string case_name(const testing::TestParamInfo<GoldenCase>& info) {
  std::string name = info.param.model;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, GemmaGoldenTest, testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace braid

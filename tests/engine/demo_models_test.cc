#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "engine/tiny_model.h"
#include "ops/logits/row_scan.h"
#include "runner/runner.h"

namespace braid {
namespace {

using nlohmann::json;

// The bundled models against what Hugging Face transformers computed in float32 on the same
// bfloat16 weights (golden.json states the method).
class DemoModelTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string root = BRAID_DEMO_MODEL_FOLDER;
    folder_ = root + "/" + GetParam();
    golden_ = json::parse(read_file(folder_ + "/golden.json"));
    heldout_ = read_file(root + "/heldout/heldout.txt");
    loaded_.emplace(LoadedModel::load(folder_));
  }

  std::string folder_, heldout_;
  json golden_;
  std::optional<LoadedModel> loaded_;
};

// Negative log-likelihood in nats of ids[1..] given all ids before them.
double nats(const TensorView& logits, std::span<const int32_t> ids) {
  double sum = 0;
  for (int64_t t = 0; t + 1 < static_cast<int64_t>(ids.size()); ++t) {
    const float* row = logits.row<float>(t);
    double highest = row[0], total = 0;
    for (int64_t v = 1; v < logits.dim(1); ++v) highest = std::max<double>(highest, row[v]);
    for (int64_t v = 0; v < logits.dim(1); ++v) total += std::exp(row[v] - highest);
    sum += std::log(total) + highest - row[ids[t + 1]];
  }
  return sum;
}

// A few chunks spread over the file, each against its own figure. Both sides compute in float32;
// a logit of magnitude up to the soft-cap is off by a few units of the norm-wise error of the
// golden tests, and the errors of a chunk's tokens are nearly independent, so that 1e-5 of the sum
// is far above them and far below any mistake of the method.
TEST_P(DemoModelTest, HeldOutTextIsAsLikelyAsInTheReference) {
  constexpr int kChunks = 5;
  constexpr double kRelative = 1e-5;
  const json& nll = golden_["nll"];
  const int64_t context = nll["context"];
  const std::vector<int32_t> ids = loaded_->tokenizer().encode(heldout_);
  ASSERT_EQ(static_cast<int64_t>(ids.size()), nll["file_tokens"]);
  const auto first = nll["first_ids"].get<std::vector<int32_t>>();
  ASSERT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + first.size()), first);
  const auto expected = nll["chunk_nats"].get<std::vector<double>>();
  const std::vector<int32_t> bos =
      loaded_->tokenizer().adds_bos() ? std::vector<int32_t>{2} : std::vector<int32_t>{};
  const int64_t new_tokens = context - static_cast<int64_t>(bos.size());

  const Model& model = loaded_->model();
  ThreadPool threads({.num_threads = 1});
  Stream stream(threads);
  CachePool pool(model.cache_layout(),
                 {.kv_dtype = DType::kF32, .max_tokens = context, .max_step_tokens = context});
  Runner runner(model, pool, stream, {.precision = ActivationPrecision::kF32});
  for (int i = 0; i < kChunks; ++i) {
    const size_t chunk = i * (expected.size() - 1) / (kChunks - 1);
    std::vector<int32_t> window = bos;
    const auto begin = ids.begin() + static_cast<int64_t>(chunk) * new_tokens;
    window.insert(window.end(), begin, begin + new_tokens);
    SequenceState sequence(pool);
    StepPlan plan;
    plan.sequences.push_back({&sequence, window, WantedLogits::kAll});
    const StepResult result = runner.run(plan);
    ASSERT_EQ(result.status, StepStatus::kDone);
    EXPECT_NEAR(nats(result.logits, window), expected[chunk], kRelative * expected[chunk])
        << "chunk " << chunk;
  }
}

// First guesses of the head that came with the checkpoint, over the first tokens of the text.
TEST_P(DemoModelTest, DraftHeadGuessesWhatTheReferenceGuesses) {
  const Model& model = loaded_->model();
  if (model.draft_head() == nullptr) GTEST_SKIP() << "this model has no draft head";
  const json& golden = golden_["mtp"]["first_chunk"];
  const auto drafts = golden["first_drafts"].get<std::vector<int32_t>>();
  const int64_t count = static_cast<int64_t>(drafts.size());
  std::vector<int32_t> ids = loaded_->tokenizer().encode(heldout_);
  ids.resize(drafts.size() + 1);

  const CacheOptions cache{.kv_dtype = DType::kF32, .max_tokens = count, .max_step_tokens = count};
  ThreadPool threads({.num_threads = 1});
  Stream stream(threads);
  CachePool pool(model.cache_layout(), cache);
  Runner runner(model, pool, stream, {.precision = ActivationPrecision::kF32});
  SequenceState sequence(pool);
  StepPlan plan;
  plan.sequences.push_back({&sequence, std::span(ids).first(drafts.size()), WantedLogits::kNone});
  const StepResult main = runner.run(plan, {.wants_hidden = true});

  const Model& head = *model.draft_head();
  CachePool head_pool(head.cache_layout(), cache);
  Runner head_runner(head, head_pool, stream, {.precision = ActivationPrecision::kF32});
  SequenceState pairs(head_pool);
  StepPlan head_plan;
  head_plan.sequences.push_back({&pairs, std::span(ids).last(drafts.size()), WantedLogits::kAll});
  const StepResult result = head_runner.run(head_plan, {.backbone_hidden = main.hidden});
  std::vector<int32_t> guessed;
  for (int64_t t = 0; t < count; ++t) {
    guessed.push_back(argmax({result.logits.row<float>(t), size_t(result.logits.dim(1))}));
  }
  EXPECT_EQ(guessed, drafts);
}

TEST_P(DemoModelTest, GreedyContinuationsAreTheReferences) {
  EngineOptions options = testing::exact_options();
  options.max_sequences = 8;
  Engine engine(*loaded_, options);
  std::map<RequestId, testing::Reply> replies;
  std::map<RequestId, json> expected;
  for (const json& entry : golden_["greedy"]) {
    const auto prompt = loaded_->tokenizer().encode(entry["prompt"].get<std::string>(),
                                                    {.add_bos = loaded_->tokenizer().adds_bos()});
    ASSERT_EQ(prompt, entry["prompt_ids"].get<std::vector<int32_t>>());
    const int64_t count = static_cast<int64_t>(entry["ids"].size());
    expected[engine.submit(testing::greedy_request(prompt, count))] = entry;
  }
  ASSERT_FALSE(expected.empty());
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) testing::take(event, replies[event.request]);
  }
  for (const auto& [id, entry] : expected) {
    EXPECT_EQ(replies[id].tokens, entry["ids"].get<std::vector<int32_t>>()) << entry["prompt"];
    EXPECT_EQ(replies[id].text, entry["text"].get<std::string>());
  }
}

std::string case_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Bundled, DemoModelTest,
                         ::testing::Values("gemma4", "gemma4-dense", "qwen3next"), case_name);

// The vocabulary of 7936 rows has 7898 tokens.
TEST(DemoModelsTest, RowsWithoutATokenAreNeverDrawn) {
  const LoadedModel loaded = LoadedModel::load(std::string(BRAID_DEMO_MODEL_FOLDER) + "/qwen3next");
  const std::vector<int32_t>& suppressed = loaded.generation().suppress_ids;
  ASSERT_EQ(suppressed.size(), 38u);
  EXPECT_EQ(suppressed.front(), 7898);
  EXPECT_EQ(suppressed.back(), 7935);
}

}  // namespace
}  // namespace braid

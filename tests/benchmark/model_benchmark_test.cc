// Rows of tiny models of dummy weights: what they move and compute, by hand.
#include "benchmark/model_benchmark.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "engine/loaded_model.h"

namespace braid {
namespace {

LoadedModel load(const std::string& name) {
  return LoadedModel::load(std::string(BRAID_TEST_DATA) + "/models/" + name,
                           {.with_tokenizer = false, .dummy_weights = true, .dummy_format = "f32"});
}

ModelBenchmarkOptions small_options() {
  return {.prompts = {},
          .generates = {},
          .threads = {1},
          .repetitions = 2,
          .precision = ActivationPrecision::kF32,
          .kv_dtype = DType::kBF16};
}

double linear_bytes(const BenchRow& row, const char* op) {
  double sum = 0;
  for (const OpResult& each : row.ops) sum += each.op == op ? each.cost.weight_bytes : 0;
  return sum;
}

// tests/data/models/gemma3: 7 layers (the sixth full, the others a window of 16), hidden 48,
// 3 heads and one KV head of 16, MLP 48, vocabulary 304, tied head.
constexpr double kLayerParameters = 48 * 48 + 2 * 16 * 48 + 48 * 48 + 3 * 48 * 48;
constexpr double kHeadParameters = 304 * 48;

TEST(ModelBenchmark, DecodeReadsEveryWeightOnceAStep) {
  const LoadedModel loaded = load("gemma3");
  ModelBenchmarkOptions options = small_options();
  options.generates = {20};
  options.batches = {1, 3};
  const std::vector<BenchRow> rows = run_model_benchmark(loaded.model(), options, {});
  ASSERT_EQ(rows.size(), 2u);
  for (const BenchRow& row : rows) {
    EXPECT_EQ(row.test, "tg20");
    EXPECT_EQ(row.tokens, 20 * row.batch);
    EXPECT_EQ(row.seconds.size(), 2u);
    EXPECT_EQ(row.work.calls, 20);  // steps
    const double step_bytes = 4 * (7 * kLayerParameters + kHeadParameters);
    EXPECT_EQ(linear_bytes(row, "linear"), 20 * step_bytes);
    EXPECT_EQ(linear_bytes(row, "embedding"), 20 * row.batch * 4 * 48);
    // Keys and values of one token in bfloat16; each step writes one and reads those it sees.
    constexpr double kTokenBytes = 2 * 16 * 2;
    double tokens_moved = 0;
    for (int position = 0; position < 20; ++position) {
      tokens_moved += 7 + (position + 1) + 6 * std::min(position + 1, 16);
    }
    EXPECT_EQ(row.work.state_bytes, row.batch * tokens_moved * kTokenBytes);
    double products = 0;
    for (const OpResult& op : row.ops) {
      if (op.op == "linear") products += op.cost.all_operations();
    }
    EXPECT_EQ(products, 20 * row.batch * 2 * (7 * kLayerParameters + kHeadParameters));
  }
}

TEST(ModelBenchmark, PrefillReadsWeightsOnceAChunkAndTheHeadOnce) {
  const LoadedModel loaded = load("gemma3");
  ModelBenchmarkOptions options = small_options();
  options.prompts = {40};
  options.batch_tokens = 16;
  options.depths = {0, 10};
  const std::vector<BenchRow> rows = run_model_benchmark(loaded.model(), options, {});
  ASSERT_EQ(rows.size(), 2u);
  for (const BenchRow& row : rows) {
    EXPECT_EQ(row.test, "pp40");
    EXPECT_EQ(row.work.calls, 3);  // 16 + 16 + 8
    EXPECT_EQ(linear_bytes(row, "linear"), 4 * (3 * 7 * kLayerParameters + kHeadParameters));
  }
  EXPECT_EQ(rows[0].depth, 0);
  EXPECT_EQ(rows[1].depth, 10);
  // What the depth adds is keys and values read.
  EXPECT_GT(rows[1].work.state_bytes, rows[0].work.state_bytes);
}

TEST(ModelBenchmark, RunsRecurrentAndExpertModels) {
  for (const char* name : {"qwen3_next", "gemma4_moe"}) {
    SCOPED_TRACE(name);
    const LoadedModel loaded = load(name);
    ModelBenchmarkOptions options = small_options();
    options.prompts = {70};
    options.prompt_batches = {1, 2};
    options.generates = {3};
    options.batches = {2};
    int64_t reports = 0;
    const std::vector<BenchRow> rows =
        run_model_benchmark(loaded.model(), options, [&](const BenchProgress& progress) {
          EXPECT_EQ(progress.done, reports++);
          EXPECT_EQ(progress.total, 3 * (2 + 2));
        });
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(reports, 12);
    for (const BenchRow& row : rows) {
      const bool has_experts = std::any_of(row.ops.begin(), row.ops.end(), [](const OpResult& op) {
        return op.layer == "moe" && op.op == "grouped_linear";
      });
      EXPECT_TRUE(has_experts) << row.key();
      EXPECT_GT(row.work.weight_bytes, 0);
    }
  }
}

TEST(ModelBenchmark, RefusesWhatTheModelCannotHold) {
  const LoadedModel loaded = load("gemma3");  // a context of 4096
  ModelBenchmarkOptions options = small_options();
  options.prompts = {4000};
  options.depths = {97};
  EXPECT_THROW(run_model_benchmark(loaded.model(), options, {}), UsageError);
  options.prompts = {0};
  EXPECT_THROW(run_model_benchmark(loaded.model(), options, {}), UsageError);
}

}  // namespace
}  // namespace braid

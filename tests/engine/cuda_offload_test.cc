#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/tiny_model.h"
#include "runner/runner.h"
#include "support/fresh_seed.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

constexpr Device kGpu{DeviceKind::kCuda, 0};

// Logits of two prompts, then of steps of a token each, graphs among them.
std::vector<float> logits_of(const LoadedModel& loaded, const std::vector<int32_t>& ids,
                             bool use_graphs, ActivationPrecision precision) {
  constexpr int64_t kPrompt = 40, kSequences = 2;
  ThreadPool threads({.num_threads = 1});
  Stream stream(threads, kGpu);
  const int64_t length = static_cast<int64_t>(ids.size());
  CachePool pool(loaded.model().cache_layout(),
                 {.kv_dtype = DType::kBF16,
                  .max_tokens = kSequences * length,
                  .max_sequences = kSequences,
                  .max_sequence_tokens = length},
                 kGpu);
  Runner runner(loaded.model(), pool, stream,
                {.precision = precision, .use_graphs = use_graphs, .deterministic = true});
  std::vector<SequenceState> sequences;
  for (int64_t i = 0; i < kSequences; ++i) sequences.emplace_back(pool);
  std::vector<float> all;
  const auto step = [&](int64_t begin, int64_t count) {
    StepPlan plan;
    for (SequenceState& sequence : sequences) {
      plan.sequences.push_back(
          {&sequence,
           std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
           WantedLogits::kLast});
    }
    const StepResult result = runner.run(plan);
    ASSERT_EQ(result.status, StepStatus::kDone);
    const std::span<const float> logits = result.logits.span<float>();
    all.insert(all.end(), logits.begin(), logits.end());
  };
  step(0, kPrompt);
  for (int64_t i = kPrompt; i < length; ++i) step(i, 1);
  return all;
}

class CudaOffloadTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "no CUDA device here";
  }
};

// Deterministic: otherwise matrices that happen to be neighbours may be multiplied as one, with
// sums in another order.
TEST_P(CudaOffloadTest, LayersOnTheHostChangeNoBit) {
  testing::FreshRandom random;
  const std::string path = GetParam()[0] == '/' ? GetParam() : testing::model_path(GetParam());
  const LoadOptions options{.with_tokenizer = false, .device = kGpu};
  const LoadedModel resident = LoadedModel::load(path, options);
  const int64_t layers = resident.model().num_layers();
  std::vector<int32_t> ids(56);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random.integer(0, resident.model().vocab_size() - 1));
  }
  std::vector<int64_t> all(static_cast<size_t>(layers)), some;
  std::iota(all.begin(), all.end(), 0);
  for (const int64_t layer : all) {
    if (random.coin()) some.push_back(layer);
  }
  const std::vector<std::vector<int64_t>> choices = {all, {0}, {layers - 1}, some};
  for (const ActivationPrecision precision :
       {ActivationPrecision::kBF16, ActivationPrecision::kF32}) {
    for (const bool use_graphs : {false, true}) {
      const std::vector<float> expected = logits_of(resident, ids, use_graphs, precision);
      // Otherwise equality would show nothing.
      ASSERT_EQ(logits_of(resident, ids, use_graphs, precision), expected);
      for (const std::vector<int64_t>& on_host : choices) {
        LoadOptions streamed = options;
        streamed.offloaded = on_host;
        const LoadedModel loaded = LoadedModel::load(path, streamed);
        EXPECT_TRUE(logits_of(loaded, ids, use_graphs, precision) == expected)
            << on_host.size() << " of " << layers << " layers on the host, graphs: " << use_graphs;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaOffloadTest,
                         ::testing::Values("gemma3", "gemma3_w4a16", "gemma4_dense", "gemma4_e2b",
                                           "gemma4_moe", "qwen3_next", "qwen3_next_w8a8",
                                           BRAID_DEMO_MODEL_FOLDER "/gemma4",
                                           BRAID_DEMO_MODEL_FOLDER "/qwen3next"));

}  // namespace
}  // namespace braid

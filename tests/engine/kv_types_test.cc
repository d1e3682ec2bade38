#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "base/mapped_file.h"
#include "engine/loaded_model.h"
#include "runner/runner.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

// The bundled models with keys and values of each type, over held-out text.
class KvTypesTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kTokens = 384;

  explicit KvTypesTest(Device device = {}) : device_(device) {}

  void SetUp() override {
    const std::string root = BRAID_DEMO_MODEL_FOLDER;
    LoadOptions options;
    options.device = device_;
    loaded_.emplace(LoadedModel::load(root + "/" + GetParam(), options));
    ids_ = loaded_->tokenizer().encode(read_file(root + "/heldout/heldout.txt"));
    ASSERT_GE(ids_.size(), size_t{2 * kTokens});
    ids_.resize(2 * kTokens);
  }

  // Logits of the first text, [kTokens, vocab], computed `chunk` tokens a step.
  std::vector<float> logits(DType kv, int64_t chunk, int num_threads, bool with_mate) {
    const Model& model = loaded_->model();
    ThreadPool threads({.num_threads = num_threads});
    Stream stream(threads, device_);
    CachePool pool(model.cache_layout(),
                   {.kv_dtype = kv,
                    .max_tokens = 2 * kTokens,
                    .max_sequences = 2,
                    .max_sequence_tokens = kTokens,
                    .max_step_tokens = 2 * kTokens},
                   device_);
    Runner runner(model, pool, stream, {.precision = ActivationPrecision::kF32});
    SequenceState own(pool), mate(pool);
    std::vector<float> all;
    for (int64_t done = 0; done < kTokens; done += chunk) {
      const int64_t count = std::min(chunk, kTokens - done);
      StepPlan plan;
      if (with_mate) {
        plan.sequences.push_back(
            {&mate, std::span(ids_).subspan(kTokens + done, count), WantedLogits::kNone});
      }
      plan.sequences.push_back({&own, std::span(ids_).subspan(done, count), WantedLogits::kAll});
      const StepResult result = runner.run(plan);
      EXPECT_EQ(result.status, StepStatus::kDone);
      for (int64_t row = 0; row < count; ++row) {
        const float* from = result.logits.row<float>(row);
        all.insert(all.end(), from, from + model.vocab_size());
      }
    }
    return all;
  }

  // Nats per token of ids[1..] given all before them.
  double loss(const std::vector<float>& logits) const {
    const int64_t vocab = loaded_->model().vocab_size();
    double sum = 0;
    for (int64_t t = 0; t + 1 < kTokens; ++t) {
      const float* row = logits.data() + t * vocab;
      const double highest = *std::max_element(row, row + vocab);
      const double total = std::accumulate(
          row, row + vocab, 0.0, [&](double s, float x) { return s + std::exp(x - highest); });
      sum += std::log(total) + highest - row[ids_[t + 1]];
    }
    return sum / (kTokens - 1);
  }

  Device device_;
  std::optional<LoadedModel> loaded_;
  std::vector<int32_t> ids_;
};

// One percent of perplexity is what int8 may cost, a tenth of it what bfloat16 may.
TEST_P(KvTypesTest, SmallTypesCostLittle) {
  const std::vector<float> exact = logits(DType::kF32, kTokens, 2, false);
  const std::vector<float> bf16 = logits(DType::kBF16, kTokens, 2, false);
  const std::vector<float> int8 = logits(DType::kI8, kTokens, 2, false);
  EXPECT_NE(int8, exact);
  EXPECT_NE(int8, bf16);
  EXPECT_NEAR(loss(bf16), loss(exact), 0.001);
  EXPECT_NEAR(loss(int8), loss(exact), 0.01);
  RecordProperty("f32", std::to_string(loss(exact)));
  RecordProperty("bf16", std::to_string(loss(bf16)));
  RecordProperty("int8", std::to_string(loss(int8)));
}

TEST_P(KvTypesTest, ChunksThreadsAndMatesDoNotChangeABit) {
  for (const DType kv : {DType::kBF16, DType::kI8}) {
    const std::vector<float> expected = logits(kv, kTokens, 2, false);
    const auto same = [&](const std::vector<float>& other) {
      return std::equal(expected.begin(), expected.end(), other.begin(), other.end(),
                        [](float a, float b) {
                          return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
                        });
    };
    EXPECT_TRUE(same(logits(kv, 37, 1, false))) << dtype_name(kv) << ", chunks, one thread";
    EXPECT_TRUE(same(logits(kv, 65, 3, true))) << dtype_name(kv) << ", with a mate, three threads";
    EXPECT_TRUE(same(logits(kv, 1, 1, false))) << dtype_name(kv) << ", token by token";
  }
}

// The same costs on a CUDA device, in steps of many tokens and of one, which other kernels compute.
// Bfloat16 and int8 are then multiplied on tensor cores, with queries and weights of bfloat16, too.
class CudaKvTypesTest : public KvTypesTest {
 protected:
  CudaKvTypesTest()
      : KvTypesTest(cuda::num_devices() > 0 ? Device{DeviceKind::kCuda, 0} : Device{}) {}
  void SetUp() override {
    if (device_.is_cpu()) GTEST_SKIP() << "no CUDA device here";
    KvTypesTest::SetUp();
  }
};

TEST_P(CudaKvTypesTest, SmallTypesCostLittle) {
  const double exact = loss(logits(DType::kF32, kTokens, 2, false));
  for (const int64_t chunk : {kTokens, int64_t{1}}) {
    const std::vector<float> int8 = logits(DType::kI8, chunk, 2, true);
    EXPECT_NE(int8, logits(DType::kBF16, chunk, 2, true));
    EXPECT_NEAR(loss(int8), exact, 0.01) << "chunks of " << chunk;
    RecordProperty("int8_" + std::to_string(chunk), std::to_string(loss(int8) - exact));
  }
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Bundled, KvTypesTest, ::testing::Values("gemma4", "gemma4-dense"),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Bundled, CudaKvTypesTest,
                         ::testing::Values("gemma4", "gemma4-dense", "qwen3next"), name_of);

}  // namespace
}  // namespace braid

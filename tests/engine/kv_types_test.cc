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

// A model that has static scales for its keys and values beside all that another is.
class WithScales : public Model {
 public:
  WithScales(const Model& model, std::vector<KvScales> scales)
      : model_(model), scales_(std::move(scales)) {}

  std::string family() const override { return model_.family(); }
  int64_t vocab_size() const override { return model_.vocab_size(); }
  int64_t hidden_size() const override { return model_.hidden_size(); }
  int64_t num_layers() const override { return model_.num_layers(); }
  int64_t max_positions() const override { return model_.max_positions(); }
  CacheLayout cache_layout() const override { return model_.cache_layout(); }
  KvScales kv_scales(int64_t layer) const override { return scales_.at(layer); }
  LayerInfo layer_info(int64_t layer) const override { return model_.layer_info(layer); }
  const LoadReport& load_report() const override { return model_.load_report(); }
  TensorView embed(StepContext& step) const override { return model_.embed(step); }
  void place(Placement&) override { FAIL() << "it is placed"; }
  TensorView forward(StepContext& step) const override { return model_.forward(step); }

 private:
  const Model& model_;
  std::vector<KvScales> scales_;
};

// The largest magnitude of a store's page contents.
float largest(const TensorView& rows) {
  float largest = 0;
  if (rows.rank() == 0) return largest;
  for (const float x : rows.span<float>()) largest = std::max(largest, std::abs(x));
  return largest;
}

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

  // By the largest keys and values of the second text, as the CPU computes them.
  void find_static_scales() {
    const LoadedModel loaded =
        LoadedModel::load(std::string(BRAID_DEMO_MODEL_FOLDER) + "/" + GetParam());
    const Model& model = loaded.model();
    ThreadPool threads({.num_threads = 2});
    Stream stream(threads);
    CachePool pool(model.cache_layout(),
                   {.kv_dtype = DType::kF32, .max_tokens = kTokens, .max_step_tokens = kTokens});
    Runner runner(model, pool, stream, {.precision = ActivationPrecision::kF32});
    SequenceState sequence(pool);
    StepPlan plan;
    plan.sequences.push_back(
        {&sequence, std::span(ids_).subspan(kTokens, kTokens), WantedLogits::kNone});
    EXPECT_EQ(runner.run(plan).status, StepStatus::kDone);
    std::vector<KvScales> scales;
    for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
      const PagedKv kv = pool.layer_kv(layer);
      scales.push_back({largest(kv.keys) / 127, largest(kv.values) / 127});
    }
    with_scales_ = std::make_unique<WithScales>(loaded_->model(), std::move(scales));
  }

  // Logits of the first text, [kTokens, vocab], computed `chunk` tokens a step.
  std::vector<float> logits(DType kv, int64_t chunk, int num_threads, bool with_mate,
                            bool static_scales = false) {
    const Model& model = static_scales ? *with_scales_ : loaded_->model();
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
  std::unique_ptr<Model> with_scales_;
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

// Scales that one text has given cost another one no more than that either.
TEST_P(KvTypesTest, StaticScalesCostLittle) {
  find_static_scales();
  const double exact = loss(logits(DType::kF32, kTokens, 2, false));
  const std::vector<float> fixed = logits(DType::kI8, kTokens, 2, false, true);
  EXPECT_NE(fixed, logits(DType::kI8, kTokens, 2, false));
  EXPECT_NEAR(loss(fixed), exact, 0.01);
  RecordProperty("static_int8", std::to_string(loss(fixed) - exact));
}

TEST_P(KvTypesTest, ChunksThreadsAndMatesDoNotChangeABit) {
  find_static_scales();
  struct Kind {
    DType kv;
    bool fixed = false;
  };
  for (const auto& [kv, fixed] : {Kind{DType::kBF16}, {DType::kI8}, {DType::kI8, true}}) {
    SCOPED_TRACE(fixed ? "static scales" : "");
    const std::vector<float> expected = logits(kv, kTokens, 2, false, fixed);
    const auto same = [&](const std::vector<float>& other) {
      return std::equal(expected.begin(), expected.end(), other.begin(), other.end(),
                        [](float a, float b) {
                          return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
                        });
    };
    // Recurrent layers want to be split at multiples of so many.
    const int64_t grain = loaded_->model().prefill_alignment();
    const int64_t chunks[] = {grain == 1 ? 37 : grain, grain == 1 ? 65 : 2 * grain, grain};
    EXPECT_TRUE(same(logits(kv, chunks[0], 1, false, fixed)))
        << dtype_name(kv) << ", chunks, one thread";
    EXPECT_TRUE(same(logits(kv, chunks[1], 3, true, fixed)))
        << dtype_name(kv) << ", with a mate, three threads";
    EXPECT_TRUE(same(logits(kv, chunks[2], 1, false, fixed)))
        << dtype_name(kv) << ", in the shortest chunks";
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
  find_static_scales();
  const double exact = loss(logits(DType::kF32, kTokens, 2, false));
  for (const int64_t chunk : {kTokens, int64_t{1}}) {
    const std::vector<float> int8 = logits(DType::kI8, chunk, 2, true);
    EXPECT_NE(int8, logits(DType::kBF16, chunk, 2, true));
    EXPECT_NEAR(loss(int8), exact, 0.01) << "chunks of " << chunk;
    RecordProperty("int8_" + std::to_string(chunk), std::to_string(loss(int8) - exact));
    const std::vector<float> fixed = logits(DType::kI8, chunk, 2, true, true);
    EXPECT_NE(fixed, int8);
    EXPECT_NEAR(loss(fixed), exact, 0.01) << "static scales, chunks of " << chunk;
    RecordProperty("static_int8_" + std::to_string(chunk), std::to_string(loss(fixed) - exact));
  }
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Bundled, KvTypesTest,
                         ::testing::Values("gemma4", "gemma4-dense", "qwen3next"), name_of);
INSTANTIATE_TEST_SUITE_P(Bundled, CudaKvTypesTest,
                         ::testing::Values("gemma4", "gemma4-dense", "qwen3next"), name_of);

}  // namespace
}  // namespace braid

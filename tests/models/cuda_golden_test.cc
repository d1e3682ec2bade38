#include "models/golden_model_test.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

// The models on the first CUDA device, against the same goldens and within the same bounds as on
// the CPU.

constexpr Device kFirstGpu{DeviceKind::kCuda, 0};

const GoldenCase kCases[] = {
    {"gemma3", "gemma3/golden.safetensors"},
    {"gemma3_linear", "gemma3_linear/golden.safetensors"},
    {"gemma4_dense", "gemma4_dense/golden.safetensors"},
    {"gemma4_e2b", "gemma4_e2b/golden.safetensors"},
    {"gemma4_e4b", "gemma4_e4b/golden.safetensors"},
    {"gemma4_moe", "gemma4_moe/golden.safetensors"},
    {"gguf/gemma4_e4b_q8_0.gguf", "gguf/gemma4_e4b_q8_0.golden.safetensors"},
    {"gguf/gemma4_moe_bf16.gguf", "gemma4_moe/golden.safetensors"},
    {"qwen3_5", "qwen3_5/golden.safetensors"},
    {"qwen3_5_moe", "qwen3_5_moe/golden.safetensors"},
    {"qwen3_next", "qwen3_next/golden.safetensors"},
    {"qwen3_next_idle_experts", "qwen3_next_idle_experts/golden.safetensors"},
    {"qwen3_next_mixed", "qwen3_next_mixed/golden.safetensors"},
    {"gguf/qwen3_5_moe_mtp_q8_0.gguf", "gguf/qwen3_5_moe_mtp_q8_0.golden.safetensors"},
};

class CudaGoldenTest : public GoldenModelTest {
 protected:
  CudaGoldenTest() : GoldenModelTest(cuda::num_devices() > 0 ? kFirstGpu : Device{}) {}
  void SetUp() override {
    if (stream_.is_cpu()) GTEST_SKIP() << "no CUDA device here";
    GoldenModelTest::SetUp();
  }
  double tolerance() const {
    constexpr double kStagesPerLayer = 18;
    constexpr double kLongestDot = 200;  // an attention row over the longest prompt
    return float32_tolerance(*model_, kStagesPerLayer, kLongestDot);
  }
};

TEST_P(CudaGoldenTest, LogitsAgreeAtEveryLength) { expect_logits_at_every_length(tolerance()); }

TEST_P(CudaGoldenTest, HiddenStatesAgreeAfterEveryLayer) { expect_hidden_states(tolerance()); }

TEST_P(CudaGoldenTest, GreedyContinuationsAreTheReferences) { expect_greedy_continuations(); }

TEST_P(CudaGoldenTest, EagerStepsGiveTheReferencesContinuations) {
  use_graphs_ = false;
  expect_greedy_continuations();
}

TEST_P(CudaGoldenTest, SingleTokensGiveTheReferencesLogits) {
  const std::vector<int32_t> ids = golden_->ints("p65.ids");
  for (const bool graphs : {false, true}) {
    use_graphs_ = graphs;
    EXPECT_LT(logits_error("p65", logits_of(ids, 1)), tolerance()) << "graphs: " << graphs;
  }
}

TEST_P(CudaGoldenTest, BatchMatesChangeNothingInDeterministicMode) {
  deterministic_ = true;
  for (const ActivationPrecision precision :
       {ActivationPrecision::kF32, ActivationPrecision::kBF16}) {
    precision_ = precision;
    expect_batch_mates_change_nothing();
  }
}

TEST_P(CudaGoldenTest, Bf16ModeStaysWithinItsBound) {
  constexpr double kRoundedInputs = 6;
  expect_median_row_bf16_within(bf16_tolerance(*model_, kRoundedInputs));
}

INSTANTIATE_TEST_SUITE_P(Models, CudaGoldenTest, testing::ValuesIn(kCases), golden_case_name);

}  // namespace
}  // namespace braid

#include "models/golden_model_test.h"

namespace braid {
namespace {

// A folder of llm-compressor with static scales of keys and values; the goldens are transformers
// with compressed-tensors' quantised cache. That rounds to codes from -128 to 127 where braid's end
// at -127, and of two programs either may round a number in the middle between two codes its own
// way; the prompts have no key or value at -128, and none nearer to such a middle than some times
// what float32 leaves open. So the codes are the same, and the tolerance is that of float32.
class KvScalesGoldenTest : public GoldenModelTest {
 protected:
  KvScalesGoldenTest() { kv_dtype_ = DType::kI8; }
};

double tolerance_of(const Model& model) {
  constexpr double kStagesPerLayer = 12;
  constexpr double kLongestDot = 130;
  return float32_tolerance(model, kStagesPerLayer, kLongestDot);
}

TEST_P(KvScalesGoldenTest, LogitsAgreeAtEveryLength) {
  expect_logits_at_every_length(tolerance_of(*model_));
}

TEST_P(KvScalesGoldenTest, HiddenStatesAgreeAfterEveryLayer) {
  expect_hidden_states(tolerance_of(*model_));
}

TEST_P(KvScalesGoldenTest, GreedyContinuationsAreTheReferences) { expect_greedy_continuations(); }

// A code more or less, were it everywhere, would be seen: float32 keys and values are.
TEST_P(KvScalesGoldenTest, RoundingIsNotWithinTheTolerance) {
  kv_dtype_ = DType::kF32;
  const std::vector<int32_t> ids = golden_->ints("p65.ids");
  EXPECT_GT(logits_error("p65", logits_of(ids, 64)), 10 * tolerance_of(*model_));
}

INSTANTIATE_TEST_SUITE_P(Models, KvScalesGoldenTest,
                         testing::Values(GoldenCase{"gemma3_llmcompressor_kv",
                                                    "gemma3_llmcompressor_kv/golden.safetensors"}),
                         golden_case_name);

}  // namespace
}  // namespace braid

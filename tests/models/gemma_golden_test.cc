#include "models/golden_model_test.h"

namespace braid {
namespace {

// tools/goldens/make_gemma.py, make_gguf.py, make_quantised.py and make_llmcompressor.py write
// these.

const GoldenCase kCases[] = {
    {"gemma3", "gemma3/golden.safetensors"},
    {"gemma3_gptq", "gemma3_gptq/golden.safetensors"},
    {"gemma3_gptq_order", "gemma3_gptq_order/golden.safetensors"},
    {"gemma3_linear", "gemma3_linear/golden.safetensors"},
    {"gemma3_llmcompressor_w4a16", "gemma3_llmcompressor_w4a16/golden.safetensors"},
    {"gemma3_llmcompressor_w8a8", "gemma3_llmcompressor_w8a8/golden.safetensors"},
    {"gemma3_nested", "gemma3_nested/golden.safetensors"},
    {"gemma3_w4a16", "gemma3_w4a16/golden.safetensors"},
    {"gemma4_defaults", "gemma4_defaults/golden.safetensors"},
    {"gemma4_dense", "gemma4_dense/golden.safetensors"},
    {"gemma4_e2b", "gemma4_e2b/golden.safetensors"},
    {"gemma4_e4b", "gemma4_e4b/golden.safetensors"},
    {"gemma4_moe", "gemma4_moe/golden.safetensors"},
    {"gemma4_moe_w4a16", "gemma4_moe_w4a16/golden.safetensors"},
    {"gemma4_nested", "gemma4_nested/golden.safetensors"},
    {"gemma4_sharded", "gemma4_sharded/golden.safetensors"},
    {"gguf/gemma3_f32.gguf", "gemma3/golden.safetensors"},
    {"gguf/gemma4_dense_bf16-00001-of-00002.gguf", "gemma4_dense/golden.safetensors"},
    {"gguf/gemma4_e2b_bf16.gguf", "gemma4_e2b/golden.safetensors"},
    {"gguf/gemma4_e4b_q8_0.gguf", "gguf/gemma4_e4b_q8_0.golden.safetensors"},
    {"gguf/gemma4_moe_bf16.gguf", "gemma4_moe/golden.safetensors"},
};

double tolerance_of(const Model& model) {
  constexpr double kStagesPerLayer = 12;
  constexpr double kLongestDot = 130;  // an attention row over the longest prompt
  return float32_tolerance(model, kStagesPerLayer, kLongestDot);
}

class GemmaGoldenTest : public GoldenModelTest {};

TEST_P(GemmaGoldenTest, LogitsAgreeAtEveryLength) {
  expect_logits_at_every_length(tolerance_of(*model_));
}

TEST_P(GemmaGoldenTest, HiddenStatesAgreeAfterEveryLayer) {
  expect_hidden_states(tolerance_of(*model_));
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

TEST_P(GemmaGoldenTest, BatchMatesChangeNothing) { expect_batch_mates_change_nothing(); }

TEST_P(GemmaGoldenTest, GreedyContinuationsAreTheReferences) { expect_greedy_continuations(); }

TEST_P(GemmaGoldenTest, Bf16ModeStaysWithinItsBound) {
  constexpr double kRoundedInputs = 5;  // projections, output, gate and up, down, router or PLE
  expect_bf16_within(bf16_tolerance(*model_, kRoundedInputs));
}

INSTANTIATE_TEST_SUITE_P(Models, GemmaGoldenTest, testing::ValuesIn(kCases), golden_case_name);

}  // namespace
}  // namespace braid

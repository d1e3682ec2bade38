#include "quantize/memory_need.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace braid {
namespace {

constexpr CalibrationShape kShape{.sequences = 4, .length = 64};

std::filesystem::path demo(const std::string& name) {
  return std::filesystem::path(BRAID_TEST_DATA).parent_path().parent_path() / "demo_models" / name;
}

// A recipe that quantises nothing but these modules.
Recipe only(const std::vector<std::string>& modules) {
  Recipe recipe{.rules = {{"*", "keep"}}};
  for (const std::string& one : modules) recipe.rules.push_back({one, "w4a16"});
  return recipe;
}

int64_t hessian_bytes(const std::string& model, const std::vector<std::string>& modules) {
  return MemoryNeed(demo(model), {.recipe = only(modules)}).hessian_bytes(kShape);
}

// Whatever becomes of the other matrices that read the same input, it has one Hessian.
TEST(MemoryNeed, CountsTheHessianOfAnInputWhoeverReadsIt) {
  for (const std::string layer : {"layers.0.", "layers.3."}) {
    const std::vector<std::vector<std::string>> inputs = {
        {layer + "self_attn.q_proj", layer + "self_attn.k_proj"},
        {layer + "mlp.gate_proj", layer + "mlp.up_proj"}};
    for (const std::vector<std::string>& readers : inputs) {
      const int64_t cols = 256;
      const int64_t expected = cols * cols * static_cast<int64_t>(sizeof(float));
      EXPECT_EQ(hessian_bytes("gemma4-dense", {readers[0]}), expected) << readers[0];
      EXPECT_EQ(hessian_bytes("gemma4-dense", {readers[1]}), expected) << readers[1];
      EXPECT_EQ(hessian_bytes("gemma4-dense", readers), expected) << readers[0];
    }
  }
}

// The source runs beside the quantised model only where GPTQ aims at its outputs.
TEST(MemoryNeed, CountsTheSourceTwiceOnlyIfItRuns) {
  const auto sum = [](QuantizeMethod method, bool match_source, const CalibrationShape& shape) {
    const MemoryNeed need(demo("gemma4-dense"), {.method = method, .match_source = match_source});
    return need.source_bytes(shape) + need.hidden_bytes(shape) + need.hessian_bytes(shape) +
           need.solver_bytes(shape);
  };
  EXPECT_GT(sum(QuantizeMethod::kGptq, true, kShape), sum(QuantizeMethod::kGptq, false, kShape));
  EXPECT_EQ(sum(QuantizeMethod::kNearest, true, kShape),
            sum(QuantizeMethod::kNearest, false, kShape));
  EXPECT_EQ(sum(QuantizeMethod::kNearest, true, {}), sum(QuantizeMethod::kNearest, false, {}));
}

TEST(MemoryNeed, CountsCopiesOfWhatIsBalanced) {
  EXPECT_EQ(MemoryNeed(demo("gemma4-dense"), {}).balanced_bytes(), 0);
  const MemoryNeed need(demo("gemma4-dense"), {.balance = 0.5});
  const ModelFiles files = ModelFiles::open(demo("gemma4-dense"));
  int64_t bytes = 0;
  for (const auto& [name, tensor] : files.weights().tensors()) {
    const int64_t elements = tensor.weight.shape.num_elements();
    const auto is = [&](const char* module) { return name.find(module) != name.npos; };
    if (is(".input_layernorm.") || is(".pre_feedforward_layernorm.")) bytes += 4 * elements;
    if (is("_proj.weight") && !is("o_proj")) bytes += 2 * elements;
  }
  EXPECT_EQ(need.balanced_bytes(), bytes);
}

}  // namespace
}  // namespace braid

#include "checkpoint/dummy_formats.h"

#include <gtest/gtest.h>

#include "checkpoint/weight_map.h"

namespace braid {
namespace {

TEST(DummyFormatsTest, FormatsAreTheSameForAll) {
  for (const char* name : {"bf16", "q4_0", "w4g64_asym", "w8c", "q4_0x16"}) {
    const auto formats = DummyFormats::find(name);
    ASSERT_TRUE(formats) << name;
    EXPECT_EQ(formats->of("embed_tokens.weight").name, name);
    EXPECT_EQ(formats->of("layers.0.mlp.up_proj.weight").name, name);
  }
  for (const char* name : {"", "w4", "w4a8", "x16", "bf16x16"}) {
    EXPECT_FALSE(DummyFormats::find(name)) << name;
  }
}

TEST(DummyFormatsTest, RecipesKeepWhatIsCheapAndSensitive) {
  for (const auto& [recipe, body] : {std::pair{"w4a16", "w4g128"}, std::pair{"w8a8", "w8c"},
                                     std::pair{"w4a16x16", "w4g128x16"}}) {
    const DummyFormats formats = *DummyFormats::find(recipe);
    for (const char* name :
         {"embed_tokens.weight", "lm_head.weight", "layers.1.mlp.gate.weight",
          "layers.1.router.proj.weight", "layers.1.mlp.shared_expert_gate.weight",
          "layers.1.linear_attn.in_proj_ba.weight", "mtp.fc.weight"}) {
      EXPECT_EQ(formats.of(name).name, "bf16") << name;
    }
    for (const char* name :
         {"layers.1.self_attn.q_proj.weight", "layers.1.mlp.gate_proj.weight",
          "layers.1.experts.gate_up_proj", "layers.1.linear_attn.in_proj_qkvz.weight",
          "layers.1.mlp.shared_expert.up_proj.weight", "mtp.layers.0.mlp.up_proj.weight"}) {
      EXPECT_EQ(formats.of(name).name, body) << name;
    }
  }
}

TEST(DummyFormatsTest, BindersFollowThem) {
  const WeightMap map = WeightMap::dummy(1, *DummyFormats::find("w4a16"));
  WeightBinder binder(map);
  EXPECT_EQ(binder.weight("lm_head.weight", {8, 128}).format->id, FormatId::kBF16);
  EXPECT_EQ(binder.weight("layers.0.mlp.up_proj.weight", {8, 128}).format->id, FormatId::kW4G128);
  EXPECT_EQ(binder.weight("layers.0.experts.down_proj", {2, 8, 704}).format->id, FormatId::kW4G64);
}

}  // namespace
}  // namespace braid

#include "models/yarn_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace braid {
namespace {

YarnConfig read(const char* json) { return read_yarn_config(ConfigReader(json, "config.json")); }

// Each frequency takes half a dozen float32 operations on either side, pow being good to a few ulp.
void expect_frequencies(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 16 * 0x1p-24 * expected[i]) << i;
  }
}

// Expected values: transformers 5.24, ROPE_INIT_FUNCTIONS["yarn"], head_dim 64.
TEST(YarnConfig, AgreesWithTheReference) {
  const YarnConfig plain = read(R"({"factor": 4.0, "original_max_position_embeddings": 262144})");
  EXPECT_NEAR(plain.attention_factor, 1.138629436111989, 1e-15);
  expect_frequencies(plain.frequencies(1e7, 16),
                     {1, 0.133352146f, 0.0177827943f, 0.00237137382f, 0.00023717084f,
                      2.10848266e-05f, 1.40585337e-06f, 1.8747356e-07f});

  const YarnConfig tuned = read(
      R"({"factor": 8.0, "original_max_position_embeddings": 2048, "beta_fast": 16,
          "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.5})");
  EXPECT_NEAR(tuned.attention_factor, 1.0376719952405395, 1e-15);
  expect_frequencies(
      tuned.frequencies(1e4, 32),
      {1, 0.562341332f, 0.316227764f, 0.177827939f, 0.100000001f, 0.0562341288f, 0.0247052945f,
       0.0100028217f, 0.00343749998f, 0.000702926656f, 0.000395284733f, 0.000222284929f,
       0.000125000006f, 7.02926627e-05f, 3.95284733e-05f, 2.22284925e-05f});
  EXPECT_EQ(read(R"({"factor": 4, "original_max_position_embeddings": 64,
                     "attention_factor": 1.5})")
                .attention_factor,
            1.5);
}

TEST(YarnConfig, BadValuesAreRefusedByName) {
  for (const auto& [json, field] :
       {std::pair{R"({"original_max_position_embeddings": 64})", "factor"},
        {R"({"factor": 4})", "original_max_position_embeddings"},
        {R"({"factor": 0, "original_max_position_embeddings": 64})", "factor"},
        {R"({"factor": 4, "original_max_position_embeddings": -1})",
         "original_max_position_embeddings"},
        {R"({"factor": 4, "original_max_position_embeddings": 64, "beta_slow": -2})",
         "beta_slow"}}) {
    try {
      read(json);
      ADD_FAILURE() << "accepted " << json;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(field));
    }
  }
}

}  // namespace
}  // namespace braid

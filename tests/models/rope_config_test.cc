#include "models/rope_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace braid {
namespace {

RopeConfig read(const char* json) {
  return read_rope_config(ConfigReader(json, "config.json"), {});
}

std::string error_of(const char* json) {
  try {
    read(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(RopeConfig, ProportionalKeepsTheWholeHeadAsDenominator) {
  const RopeConfig rope =
      read(R"({"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25})");
  const std::vector<float> frequencies = rope.frequencies(512);
  ASSERT_EQ(frequencies.size(), 64u);
  for (int i = 0; i < 64; ++i) {
    const double exact = std::pow(1e6, -2.0 * i / 512);
    EXPECT_NEAR(frequencies[i], exact, exact * 0x1p-21) << i;
  }
}

TEST(RopeConfig, LinearDividesEveryFrequency) {
  const std::vector<float> plain =
      read(R"({"rope_type": "default", "rope_theta": 1e6})").frequencies(64);
  const std::vector<float> scaled =
      read(R"({"rope_type": "linear", "rope_theta": 1e6, "factor": 8})").frequencies(64);
  ASSERT_EQ(plain.size(), 32u);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(scaled[i], plain[i] / 8);
}

TEST(RopeConfig, WhatIsNotImplementedIsRefusedByName) {
  EXPECT_THAT(error_of(R"({"rope_type": "yarn", "factor": 4})"), testing::HasSubstr("'yarn'"));
  EXPECT_THAT(error_of(R"({"rope_type": "default", "attention_factor": 1.2})"),
              testing::HasSubstr("attention_factor"));
  EXPECT_THAT(error_of(R"({"rope_type": "default", "factor": 2})"), testing::HasSubstr("factor"));
  EXPECT_THAT(error_of(R"({"rope_type": "linear", "factor": 0})"), testing::HasSubstr("factor"));
  EXPECT_THAT(error_of(R"({"rope_type": "default", "rope_theta": -1})"),
              testing::HasSubstr("rope_theta"));
  EXPECT_THAT(error_of(R"({"rope_type": "default", "rope_theta": "big"})"),
              testing::HasSubstr("rope_theta"));
}

TEST(RopeConfig, NullFieldsAreAbsent) {
  EXPECT_EQ(read(R"({"rope_type": "default", "mscale": null})").theta, RopeConfig().theta);
}

}  // namespace
}  // namespace braid

#include "sampling/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace braid {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SamplingParams, LegalEdgesAreAccepted) {
  EXPECT_NO_THROW(validate({}, 100));
  EXPECT_NO_THROW(validate({.temperature = 0, .top_k = -1, .min_p = 1}, 100));
  EXPECT_NO_THROW(validate({.top_k = 1 << 30, .top_p = 1e-9f}, 100));
  EXPECT_NO_THROW(validate({.presence_penalty = -2, .frequency_penalty = 2}, 100));
  EXPECT_NO_THROW(
      validate({.logit_bias = {{0, -100}, {99, 100}}, .suppress_ids = {0, 0, 99}}, 100));
  EXPECT_NO_THROW(validate({.num_logprobs = 0}, 100));
}

TEST(SamplingParams, EveryFaultNamesItsParameter) {
  struct Case {
    SamplingParams params;
    const char* message;
  };
  const Case cases[] = {
      {{.temperature = -0.1f}, "temperature is -0.1"},
      {{.temperature = kNan}, "temperature is nan"},
      {{.temperature = kInfinity}, "temperature is inf"},
      {{.top_k = -2}, "top_k is -2"},
      {{.top_p = 0}, "top_p is 0"},
      {{.top_p = 1.5f}, "top_p is 1.5"},
      {{.top_p = kNan}, "top_p is nan"},
      {{.min_p = -0.5f}, "min_p is -0.5"},
      {{.min_p = 1.5f}, "min_p is 1.5"},
      {{.min_p = kNan}, "min_p is nan"},
      {{.repetition_penalty = 0}, "repetition_penalty is 0"},
      {{.repetition_penalty = kInfinity}, "repetition_penalty is inf"},
      {{.presence_penalty = 2.5f}, "presence_penalty is 2.5"},
      {{.frequency_penalty = -3}, "frequency_penalty is -3"},
      {{.logit_bias = {{100, 1}}}, "logit_bias names token 100"},
      {{.logit_bias = {{-1, 1}}}, "logit_bias names token -1"},
      {{.logit_bias = {{3, 101}}}, "logit_bias is 101"},
      {{.logit_bias = {{3, kNan}}}, "logit_bias is nan"},
      {{.logit_bias = {{3, 1}, {4, 1}, {3, 2}}}, "logit_bias names token 3 twice"},
      {{.suppress_ids = {100}}, "suppress_ids names token 100"},
      {{.num_logprobs = -1}, "logprobs is -1"},
      {{.num_logprobs = 1001}, "logprobs is 1001"},
  };
  for (const Case& c : cases) {
    try {
      validate(c.params, 100);
      ADD_FAILURE() << "accepted: " << c.message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(c.message));
    }
  }
}

}  // namespace
}  // namespace braid

#include "base/error.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace braid {
namespace {

TEST(Error, FormatsItsMessage) {
  const Error error("{}: tensor {} has {} rows", "model.safetensors", "norm.weight", 3);
  EXPECT_STREQ(error.what(), "model.safetensors: tensor norm.weight has 3 rows");
}

// Text from outside must never be taken for a format.
TEST(Error, TakesALoneMessageAsItIs) {
  EXPECT_STREQ(Error("a {} and a { brace").what(), "a {} and a { brace");
  EXPECT_STREQ(Error(std::string("{0}")).what(), "{0}");
}

TEST(Error, UsageErrorIsAnError) {
  try {
    throw UsageError("--threads {}: expected a number", "many");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--threads many: expected a number");
    EXPECT_NE(dynamic_cast<const UsageError*>(&error), nullptr);
  }
}

TEST(CheckDeathTest, NamesPlaceConditionAndValues) {
  const int rows = 3;
  BRAID_CHECK(rows == 3, "rows {}", rows);
  EXPECT_DEATH(BRAID_CHECK(rows < 2, "rows {}", rows),
               "error_test.cc:[0-9]+: check failed: rows < 2: rows 3");
  EXPECT_DEATH(BRAID_CHECK(rows < 2), "check failed: rows < 2");
}

TEST(Check, EvaluatesItsConditionOnce) {
  int count = 0;
  BRAID_CHECK(++count > 0);
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace braid

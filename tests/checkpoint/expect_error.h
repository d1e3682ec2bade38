#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"

namespace braid::testing {

// The action must throw an Error of one line that contains each of `parts`.
inline void expect_error(const std::function<void()>& action,
                         std::initializer_list<std::string_view> parts) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr("\n")));
    for (const std::string_view part : parts) {
      EXPECT_THAT(message, ::testing::HasSubstr(std::string(part)));
    }
    return;
  }
  ADD_FAILURE() << "no Error was thrown";
}

}  // namespace braid::testing

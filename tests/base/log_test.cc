#include "base/log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace braid {
namespace {

TEST(Log, WarnsOncePerMessageAcrossThreads) {
  std::ostringstream stream;
  const auto previous = spdlog::default_logger();
  const auto logger = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(stream));
  logger->set_pattern("%l: %v");
  spdlog::set_default_logger(logger);
  // What this process has not said yet, however often it repeats the test.
  static int round = 0;
  const std::string first = "slow path {} of round " + std::to_string(++round);
  const std::string other = "slow path of round " + std::to_string(round);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      warn_once(first);
      warn_once(other);
    });
  }
  for (std::thread& thread : threads) thread.join();
  spdlog::set_default_logger(previous);
  const std::string text = stream.str();
  for (const std::string& message : {first, other}) {
    EXPECT_EQ(text.find(message), text.rfind(message));
    EXPECT_NE(text.find("warning: " + message + "\n"), std::string::npos);
  }
}

}  // namespace
}  // namespace braid

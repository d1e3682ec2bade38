#include "base/log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>
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
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      warn_once("a slow path {} is taken");
      warn_once("another slow path is taken");
    });
  }
  for (std::thread& thread : threads) thread.join();
  spdlog::set_default_logger(previous);
  const std::string text = stream.str();
  EXPECT_EQ(text.find("a slow path {} is taken"), text.rfind("a slow path {} is taken"));
  EXPECT_NE(text.find("warning: a slow path {} is taken\n"), std::string::npos);
  EXPECT_NE(text.find("warning: another slow path is taken\n"), std::string::npos);
}

}  // namespace
}  // namespace braid

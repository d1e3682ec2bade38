#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <mutex>
#include <string>
#include <unordered_set>

namespace braid {

void init_logging(spdlog::level::level_enum level) {
  auto logger = std::make_shared<spdlog::logger>(
      "braid", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^%l%$: %v");
  logger->set_level(level);
  spdlog::set_default_logger(std::move(logger));
}

void warn_once(std::string_view message) {
  static std::mutex mutex;
  static std::unordered_set<std::string> seen;
  {
    std::lock_guard lock(mutex);
    if (!seen.emplace(message).second) return;
  }
  spdlog::warn("{}", message);
}

}  // namespace braid

#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace braid {

// Sends the log to stderr as "level: message" (with colours on a terminal). Call once, from main.
void init_logging(spdlog::level::level_enum level);

// Warns once per process for each distinct message: for fallbacks to a slower path and the like.
void warn_once(std::string_view message);

}  // namespace braid

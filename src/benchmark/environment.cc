#include "benchmark/environment.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <map>
#include <thread>

#include "base/cpu_features.h"
#include "source_commit.h"

namespace braid {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::map<std::string, std::string> fields;  // of the first processor
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t name_end = line.find_last_not_of(" \t", colon - 1);
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (name_end == std::string::npos || begin == std::string::npos) continue;
    fields.emplace(line.substr(0, name_end + 1), line.substr(begin));
  }
  if (fields["model name"].empty()) return "unknown processor";
  // Virtual machines hide the name's number, but not these.
  return fmt::format("{} (family {}, model {})", fields["model name"], fields["cpu family"],
                     fields["model"]);
}

Environment current_environment(const std::string& command) {
  Environment environment;
  environment.cpu = cpu_model();
  environment.isa = isa_name(active_isa());
  environment.processors = static_cast<int>(std::thread::hardware_concurrency());
  environment.commit = BRAID_SOURCE_COMMIT;
#if defined(__clang__)
  environment.compiler = "clang " __clang_version__;
#elif defined(__GNUC__)
  environment.compiler = "gcc " __VERSION__;
#endif
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  environment.date = text;
  environment.command = command;
  return environment;
}

}  // namespace braid

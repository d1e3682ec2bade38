#pragma once

#include <string>

namespace braid {

// Where and with what something was measured.
struct Environment {
  std::string cpu;
  std::string isa;
  int processors = 0;
  std::string commit;  // of the source, with "+" if it had changes; empty: unknown
  std::string compiler;
  std::string date;     // UTC, "2026-01-31T12:00:00Z"
  std::string command;  // as it was called
};

Environment current_environment(const std::string& command);

// "AMD EPYC (family 25, model 1)"; "unknown processor" if the system does not say.
std::string cpu_model();

}  // namespace braid

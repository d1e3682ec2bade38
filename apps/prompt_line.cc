#include "apps/prompt_line.h"

#include <editline/readline.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

namespace braid {

std::optional<std::string> read_prompt_line(const char* prompt) {
  if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  char* typed = readline(prompt);
  if (typed == nullptr) return std::nullopt;
  std::string line(typed);
  std::free(typed);
  if (!line.empty()) add_history(line.c_str());
  return line;
}

}  // namespace braid

#include "apps/command_line.h"

namespace braid {

std::string command_line(const std::string& program, const CLI::App& command) {
  std::string text = program;
  if (!text.ends_with(" " + command.get_name())) text += " " + command.get_name();
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    if (!option->get_positional()) text += " " + option->get_name();
    const std::vector<std::string> values = option->results();
    if (option->get_items_expected_max() == 0) continue;  // a flag
    for (size_t i = 0; i < values.size(); ++i) text += (i == 0 ? " " : ",") + values[i];
  }
  return text;
}

}  // namespace braid

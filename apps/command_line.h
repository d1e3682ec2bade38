#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace braid {

// How a command was called, for reports: `program`, its name unless that ends `program` already,
// and the options as given, each under its first name; several values with commas.
std::string command_line(const std::string& program, const CLI::App& command);

}  // namespace braid

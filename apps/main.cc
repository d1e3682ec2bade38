#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "apps/command.h"
#include "base/error.h"
#include "base/log.h"

namespace {

constexpr int kRunError = 1;
constexpr int kUsageError = 2;

int report(const char* message, int exit_code) {
  std::fprintf(stderr, "braid: %s\n", message);
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"braid: inference for hybrid language models (Gemma 3, Gemma 4)", "braid"};
  app.set_version_flag("--version", BRAID_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  std::string log_level = "info";
  app.add_option("--log-level", log_level, "Least severe messages to print on stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.parse_complete_callback([&] { braid::init_logging(spdlog::level::from_str(log_level)); });
  braid::add_run_command(app);
  braid::add_tokenize_command(app);
  braid::add_logits_command(app);
  braid::add_inspect_command(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version end here too, with code 0.
    return app.exit(error) == 0 ? 0 : kUsageError;
  } catch (const braid::UsageError& error) {
    return report(error.what(), kUsageError);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kRunError);
  } catch (const std::exception& error) {
    return report(error.what(), kRunError);
  }
  return 0;
}

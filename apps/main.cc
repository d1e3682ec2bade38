#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
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

// One line, as all errors; help and version go to standard output.
int report(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  std::string message = error.what();
  std::replace(message.begin(), message.end(), '\n', ' ');
  return report((message + " (see --help)").c_str(), kUsageError);
}

}  // namespace

int main(int argc, char** argv) {
  // A file that grows beyond a limit is an error like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
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
  braid::add_bench_command(app);
  braid::add_pack_command(app);
  braid::add_eval_command(app);
  braid::add_quantize_command(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version end here too, with code 0.
    const int exit_code = report(app, error);
    if (exit_code != 0) return exit_code;
  } catch (const braid::UsageError& error) {
    return report(error.what(), kUsageError);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kRunError);
  } catch (const std::exception& error) {
    return report(error.what(), kRunError);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return report("standard output: cannot write", kRunError);
  }
  return 0;
}

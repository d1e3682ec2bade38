#pragma once

#include <CLI/CLI.hpp>

namespace braid {

// Each adds one subcommand to the command line; its callback does the work and throws Error
// (exit code 1) or UsageError (2).
void add_run_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_logits_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_pack_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_quantize_command(CLI::App& app);

}  // namespace braid

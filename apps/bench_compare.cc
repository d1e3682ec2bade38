#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "apps/bench_output.h"
#include "apps/command.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "benchmark/compare.h"

namespace braid {
namespace {

struct CompareOptions {
  std::string before, after;
  std::optional<double> tolerance;  // percent
};

void run_compare(const CompareOptions& options) {
  const BenchResult before = bench_result_from_json(read_file(options.before), options.before);
  const BenchResult after = bench_result_from_json(read_file(options.after), options.after);
  const BenchComparison comparison = compare(before, after);
  if (comparison.rows.empty()) {
    throw Error("{} and {} have no row in common", options.before, options.after);
  }
  write_out(comparison_table(comparison));
  if (!options.tolerance) return;
  const auto slower = comparison.slower(*options.tolerance / 100);
  if (!slower.empty()) {
    throw Error("{} of {} rows slower by more than {} %; the worst: {} at {:.3f} of the speed",
                slower.size(), comparison.rows.size(), *options.tolerance, slower.front().key,
                slower.front().ratio());
  }
}

}  // namespace

void add_bench_compare_command(CLI::App& bench) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command =
      bench.add_subcommand("compare", "Ratios of two results of --json, the largest loss first");
  command->add_option("BEFORE", options->before, "Result file")->required()->option_text(" ");
  command->add_option("AFTER", options->after, "Result file")->required()->option_text(" ");
  command
      ->add_option("--tolerance", options->tolerance,
                   "Percent; fail if a row is slower by more (default: only report)")
      ->check(CLI::Range(0.0, 100.0));
  command->callback([options] { run_compare(*options); });
}

}  // namespace braid

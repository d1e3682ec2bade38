#include "apps/bench_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/table.h"
#include "base/error.h"

namespace braid {
namespace {

std::string giga(double value, int decimals = 1) {
  return fmt::format("{:.{}f}", value / 1e9, decimals);
}

double operations(const Ceilings& ceilings, Arithmetic arithmetic) {
  return ceilings.operations_per_second[static_cast<int>(arithmetic)];
}

std::string rate_text(double rate) { return fmt::format("{:.{}f}", rate, rate < 100 ? 2 : 0); }

}  // namespace

std::string bench_table(const BenchResult& result) {
  const Environment& e = result.environment;
  std::string text = result.model;
  if (!result.weights.empty()) {
    text += fmt::format(", weights: {}, compute: {}", result.weights, result.compute);
  }
  text +=
      fmt::format("\n{}, {}, commit {}\n", e.cpu, e.isa, e.commit.empty() ? "unknown" : e.commit);
  for (const Ceilings& c : result.ceilings) {
    text += fmt::format("ceilings of {} {}: read {} GB/s; int8 {}, bf16 {}, f32 {} GOP/s\n",
                        c.threads, c.threads == 1 ? "thread" : "threads",
                        giga(c.read_bytes_per_second), giga(operations(c, Arithmetic::kInt8), 0),
                        giga(operations(c, Arithmetic::kBF16), 0),
                        giga(operations(c, Arithmetic::kF32), 0));
  }
  const bool ops = std::all_of(result.rows.begin(), result.rows.end(),
                               [](const BenchRow& row) { return row.tokens == 0; });
  Table table(ops ? std::vector<std::string>{"op", "threads", "us", "slowest", "spread", "MB",
                                             "GB/s", "MOP", "GOP/s", "bound", "share"}
                  : std::vector<std::string>{"test", "batch", "threads", "depth", "tok/s",
                                             "slowest", "spread", "GB", "GB/s", "GOP", "GOP/s",
                                             "bound", "share"});
  for (const BenchRow& row : result.rows) {
    const RowBound bound = bound_of(row, result);
    const double bytes = row.work.weight_bytes + row.work.state_bytes;
    const double count = row.work.all_operations();
    const double seconds = row.median_seconds();
    const double scale = ops ? 1e3 : 1;  // MB and MOP rather than GB and GOP
    std::vector<std::string> cells = {row.test};
    if (!ops) cells.push_back(std::to_string(row.batch));
    cells.push_back(std::to_string(row.threads));
    if (ops) {
      cells.push_back(fmt::format("{:.1f}", 1e6 * seconds));
      cells.push_back(fmt::format("{:.1f}", 1e6 / row.min_rate()));
    } else {
      cells.push_back(std::to_string(row.depth));
      cells.push_back(rate_text(row.rate()));
      cells.push_back(rate_text(row.min_rate()));
    }
    cells.push_back(fmt::format("{:.0f} %", 100 * row.spread()));
    cells.push_back(giga(scale * bytes, 2));
    cells.push_back(giga(bytes / seconds));
    cells.push_back(giga(scale * count, 2));
    cells.push_back(giga(count / seconds));
    cells.push_back(bound.what);
    cells.push_back(fmt::format("{:.0f} %", 100 * bound.share));
    table.add(std::move(cells));
  }
  return text + "\n" + table.to_string();
}

std::string comparison_table(const BenchComparison& comparison) {
  Table table({"row", "before", "after", "unit", "ratio", "spread"});
  for (const RowComparison& row : comparison.rows) {
    table.add({row.key, rate_text(row.before), rate_text(row.after), row.unit,
               fmt::format("{:.3f}", row.ratio()), fmt::format("{:.0f} %", 100 * row.noise)});
  }
  std::string text = table.to_string();
  for (const std::string& key : comparison.only_before) text += "only before: " + key + "\n";
  for (const std::string& key : comparison.only_after) text += "only after: " + key + "\n";
  return text;
}

}  // namespace braid

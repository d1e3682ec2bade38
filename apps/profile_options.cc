#include "apps/profile_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "apps/table.h"
#include "base/error.h"

namespace braid {
namespace {

struct Line {
  std::string name;
  Profiler::Entry cost;
};

std::string rate(double amount, double seconds) {
  return amount > 0 && seconds > 0 ? fmt::format("{:.1f}", amount / seconds / 1e9) : "–";
}

std::string table_of(const char* title, const std::vector<OpResult>& ops, double seconds,
                     std::string (*name_of)(const OpResult&)) {
  std::vector<Line> lines;
  double known = 0;
  for (const OpResult& op : ops) {
    const std::string name = name_of(op);
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const Line& each) { return each.name == name; });
    if (line == lines.end()) line = lines.insert(lines.end(), {name, {}});
    line->cost.add(op.cost);
    known += op.cost.seconds;
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.cost.seconds > b.cost.seconds; });
  Table table({title, "ms", "share", "calls", "GB/s", "GOP/s"});
  const auto share = [&](double part) {
    return fmt::format("{:.1f} %", seconds > 0 ? 100 * part / seconds : 0.0);
  };
  for (const Line& line : lines) {
    const Profiler::Entry& cost = line.cost;
    table.add({line.name, fmt::format("{:.2f}", 1e3 * cost.seconds), share(cost.seconds),
               std::to_string(cost.calls), rate(cost.bytes(), cost.seconds),
               rate(cost.all_operations(), cost.seconds)});
  }
  const double rest = std::max(0.0, seconds - known);
  table.add({"(between ops)", fmt::format("{:.2f}", 1e3 * rest), share(rest), "–", "–", "–"});
  return table.to_string();
}

}  // namespace

void ProfileOptions::add_to(CLI::App& command) {
  option_ = command.add_option("--profile", file_,
                               "Print time by op and by kind of layer on stderr; with FILE.json "
                               "also write a trace for chrome://tracing or Perfetto");
  option_->expected(0, 1)->option_text("[FILE.json]");
}

void ProfileOptions::check() const {
  if (!wants_trace()) return;
  if (!file_.ends_with(".json")) {
    throw UsageError("--profile {}: the trace's name must end with .json (MODEL goes before)",
                     file_);
  }
  if (!std::ofstream(file_, std::ios::app)) throw Error("{}: cannot write the trace", file_);
}

Profiler* ProfileOptions::profiler() const {
  if (!wanted()) return nullptr;
  if (profiler_ == nullptr) profiler_ = std::make_unique<Profiler>(wants_trace());
  return profiler_.get();
}

void ProfileOptions::report() const {
  if (profiler_ == nullptr) return;
  fmt::print(stderr, "{} steps, {:.1f} ms\n{}", profiler_->num_steps(),
             1e3 * profiler_->step_seconds(),
             profile_tables(op_results(*profiler_), profiler_->step_seconds()));
  if (wants_trace()) write_trace(profiler_->events(), profiler_->num_dropped_events());
}

void ProfileOptions::write_trace(const std::vector<Profiler::Event>& events,
                                 int64_t num_dropped) const {
  std::ofstream file(file_);
  file << chrome_trace(events, num_dropped);
  file.close();
  if (!file) throw Error("{}: cannot write the trace", file_);
}

std::string profile_tables(const std::vector<OpResult>& ops, double seconds) {
  return table_of("op", ops, seconds,
                  [](const OpResult& op) {
                    return op.operand.empty() ? op.op : op.op + " " + op.operand;
                  }) +
         "\n" + table_of("layer", ops, seconds, [](const OpResult& op) { return op.layer; });
}

}  // namespace braid

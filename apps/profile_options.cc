#include "apps/profile_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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
                     double read_rate, std::string (*name_of)(const OpResult&)) {
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
  std::vector<std::string> header{title, "ms", "share", "calls", "GB/s", "GOP/s"};
  if (read_rate > 0) header.emplace_back("of reads");
  Table table(header);
  const auto share = [&](double part) {
    return fmt::format("{:.1f} %", seconds > 0 ? 100 * part / seconds : 0.0);
  };
  for (const Line& line : lines) {
    const Profiler::Entry& cost = line.cost;
    std::vector<std::string> row{line.name,
                                 fmt::format("{:.2f}", 1e3 * cost.seconds),
                                 share(cost.seconds),
                                 std::to_string(cost.calls),
                                 rate(cost.bytes(), cost.seconds),
                                 rate(cost.all_operations(), cost.seconds)};
    if (read_rate > 0) {
      const double bytes = cost.weight_bytes + cost.state_bytes;
      row.push_back(bytes > 0 && cost.seconds > 0
                        ? fmt::format("{:.0f} %", 100 * bytes / cost.seconds / read_rate)
                        : "–");
    }
    table.add(row);
  }
  const double rest = std::max(0.0, seconds - known);
  std::vector<std::string> between{"(between ops)", fmt::format("{:.2f}", 1e3 * rest), share(rest)};
  between.resize(header.size(), "–");
  table.add(between);
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
  // The code of kernels that is brought at their first use would count as their time.
  if (wanted()) ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
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
  profiler_->collect();
  fmt::print(stderr, "{}\n{}",
             profile_summary(fmt::format("{} steps", profiler_->num_steps()),
                             profiler_->step_seconds(), profiler_->device_cost()),
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

std::string profile_tables(const std::vector<OpResult>& ops, double seconds, double read_rate) {
  return table_of("op", ops, seconds, read_rate,
                  [](const OpResult& op) {
                    return op.operand.empty() ? op.op : op.op + " " + op.operand;
                  }) +
         "\n" +
         table_of("layer", ops, seconds, read_rate, [](const OpResult& op) { return op.layer; });
}

std::string profile_summary(const std::string& steps, double seconds,
                            const std::optional<Profiler::DeviceCost>& cost) {
  std::string text = fmt::format("{}, {:.1f} ms", steps, 1e3 * seconds);
  if (!cost) return text;
  return text + fmt::format(
                    " of the device ({:.1f} ms by the host's clock). While profiling, ops are "
                    "queued one by one, without graphs and without overlap; {} events around them "
                    "took about {:.2f} us each, {:.1f} ms in all, half of it within the ops",
                    1e3 * cost->host_seconds, cost->marks, 1e6 * cost->mark_seconds,
                    1e3 * static_cast<double>(cost->marks) * cost->mark_seconds);
}

}  // namespace braid

#include "benchmark/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "report/html_page.h"

namespace braid {
namespace {

constexpr int kLabelWidth = 190, kPlotWidth = 560, kRowHeight = 26, kBarHeight = 16;
constexpr double kSmallShare = 0.01;  // of the time; ops below are drawn together

// A label and a stretch for bars.
void begin_plot(HtmlPage& page, size_t rows, int extra_height) {
  const int height = static_cast<int>(rows) * kRowHeight + extra_height;
  page.add("<svg viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\">",
           kLabelWidth + kPlotWidth + 130, height, kLabelWidth + kPlotWidth + 130, height);
}

void add_label(HtmlPage& page, size_t row, const std::string& text) {
  page.add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kLabelWidth - 8,
           row * kRowHeight + 18, escape_html(text));
}

void add_bar(HtmlPage& page, size_t row, double from, double share, const char* colour,
             const std::string& title) {
  page.add(
      "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}</title>"
      "</rect>",
      kLabelWidth + from * kPlotWidth, row * kRowHeight + 5, std::max(0.0, share) * kPlotWidth,
      kBarHeight, colour, escape_html(title));
}

std::string unit_of(const BenchRow& row) { return row.tokens > 0 ? "tok/s" : "calls/s"; }

void add_shares(HtmlPage& page, const BenchResult& result) {
  page.add("<h2>Share of the ceiling</h2>");
  page.add(
      "<p>The time that the row's bytes and operations take at the measured ceilings, "
      "divided by the time it took.</p>");
  begin_plot(page, result.rows.size(), 22);
  for (int tick = 0; tick <= 4; ++tick) {
    const double x = kLabelWidth + kPlotWidth * tick / 4.0;
    const size_t bottom = result.rows.size() * kRowHeight + 4;
    page.add("<line x1=\"{0:.1f}\" y1=\"0\" x2=\"{0:.1f}\" y2=\"{1}\" stroke=\"#ddd\"/>", x,
             bottom);
    page.add("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{} %</text>", x, bottom + 14,
             25 * tick);
  }
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const BenchRow& row = result.rows[i];
    const RowBound bound = bound_of(row, result);
    add_label(page, i, row.key());
    add_bar(page, i, 0, std::min(1.0, bound.share),
            bound.what == "memory" ? kPlotColours[0] : kPlotColours[1],
            fmt::format("{:.1f} % of {}", 100 * bound.share, bound.what));
    page.add("<text x=\"{:.1f}\" y=\"{}\">{:.0f} % of {}</text>",
             kLabelWidth + std::min(1.0, bound.share) * kPlotWidth + 6, i * kRowHeight + 18,
             100 * bound.share, escape_html(bound.what));
  }
  page.add("</svg>");
}

void add_breakdown(HtmlPage& page, const BenchResult& result) {
  page.add("<h2>Where the time goes</h2>");
  page.add("<p>By op, in one profiled repetition; white: between ops.</p>");
  std::map<std::string, const char*> colours;
  const auto colour_of = [&](const std::string& name) {
    const auto [it, is_new] = colours.try_emplace(name, nullptr);
    if (is_new) it->second = kPlotColours[(colours.size() - 1) % kPlotColours.size()];
    return it->second;
  };
  begin_plot(page, result.rows.size(), 4);
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const BenchRow& row = result.rows[i];
    add_label(page, i, row.key());
    std::vector<std::pair<std::string, double>> parts;  // by op, in the order of the longest
    for (const OpResult& op : row.ops) {
      const auto known = std::find_if(parts.begin(), parts.end(),
                                      [&](const auto& part) { return part.first == op.op; });
      if (known == parts.end()) {
        parts.emplace_back(op.op, op.cost.seconds);
      } else {
        known->second += op.cost.seconds;
      }
    }
    double from = 0, small = 0;
    for (const auto& [name, seconds] : parts) {
      const double share = seconds / std::max(row.work.seconds, 1e-12);
      if (share < kSmallShare) {
        small += share;
        continue;
      }
      add_bar(page, i, from, share, colour_of(name),
              fmt::format("{}: {:.1f} %, {:.3f} ms", name, 100 * share, 1e3 * seconds));
      from += share;
    }
    if (small > 0) {
      add_bar(page, i, from, small, "#bbbbbb", fmt::format("other ops: {:.1f} %", 100 * small));
    }
  }
  page.add("</svg>");
  std::string legend;
  for (const auto& [name, colour] : colours) {
    legend += fmt::format(
        "<span style=\"border-left: 1em solid {}; padding: 0 1em 0 0.3em\">{}"
        "</span>",
        colour, escape_html(name));
  }
  page.add("<p>{}</p>", legend);
}

void add_table(HtmlPage& page, const BenchResult& result) {
  page.add(
      "<table><tr><th>test</th><th>batch</th><th>threads</th><th>depth</th><th>rate</th>"
      "<th>slowest</th><th>spread</th><th>moved</th><th>GB/s</th><th>GOP</th><th>GOP/s</th>"
      "<th>bound</th><th>share</th></tr>");
  for (const BenchRow& row : result.rows) {
    const RowBound bound = bound_of(row, result);
    const double bytes = row.work.weight_bytes + row.work.state_bytes;
    const double operations = row.work.all_operations();
    page.add(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1f} {}</td><td>{:.1f}</td>"
        "<td>{:.0f} %</td><td>{:.3f} GB</td><td>{:.1f}</td><td>{:.2f}</td><td>{:.1f}</td>"
        "<td>{}</td><td>{:.0f} %</td></tr>",
        escape_html(row.test), row.batch, row.threads, row.depth, row.rate(), unit_of(row),
        row.min_rate(), 100 * row.spread(), bytes / 1e9, bytes / 1e9 / row.median_seconds(),
        operations / 1e9, operations / 1e9 / row.median_seconds(), escape_html(bound.what),
        100 * bound.share);
  }
  page.add("</table>");
}

}  // namespace

std::string to_html(const BenchResult& result) {
  const Environment& e = result.environment;
  HtmlPage page("braid bench: " + result.model);
  page.add("<h1>{}</h1>", escape_html(result.model));
  page.add(
      "<p>{}; weights: {}; compute: {}.<br/>{}, {} processors, {}; {}; commit {}; {}.<br/>"
      "<code>{}</code></p>",
      escape_html(result.family), escape_html(result.weights), escape_html(result.compute),
      escape_html(e.cpu), e.processors, escape_html(e.isa), escape_html(e.compiler),
      e.commit.empty() ? "unknown" : escape_html(e.commit), escape_html(e.date),
      escape_html(e.command));
  for (const Ceilings& c : result.ceilings) {
    page.add(
        "<p>Ceilings of {} threads: read {:.1f} GB/s; int8 {:.0f}, bf16 {:.0f}, f32 {:.0f} "
        "GOP/s.</p>",
        c.threads, c.read_bytes_per_second / 1e9,
        c.operations_per_second[static_cast<int>(Arithmetic::kInt8)] / 1e9,
        c.operations_per_second[static_cast<int>(Arithmetic::kBF16)] / 1e9,
        c.operations_per_second[static_cast<int>(Arithmetic::kF32)] / 1e9);
  }
  add_table(page, result);
  add_shares(page, result);
  add_breakdown(page, result);
  return page.take();
}

}  // namespace braid

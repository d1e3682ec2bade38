#include "benchmark/html_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

namespace braid {
namespace {

// Colours that stay apart in grey and for the colour-blind (after Okabe and Ito).
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                 "#56b4e9", "#d55e00", "#f0e442", "#999999"};
constexpr int kLabelWidth = 190, kPlotWidth = 560, kRowHeight = 26, kBarHeight = 16;
constexpr double kSmallShare = 0.01;  // of the time; ops below are drawn together

// For element contents and attributes; control characters, which XML has no place for, become '?'.
std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

class Page {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// A label and a stretch for bars.
void begin_plot(Page& page, size_t rows, int extra_height) {
  const int height = static_cast<int>(rows) * kRowHeight + extra_height;
  page.add("<svg viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" role=\"img\">",
           kLabelWidth + kPlotWidth + 130, height, kLabelWidth + kPlotWidth + 130, height);
}

void add_label(Page& page, size_t row, const std::string& text) {
  page.add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kLabelWidth - 8,
           row * kRowHeight + 18, escape(text));
}

void add_bar(Page& page, size_t row, double from, double share, const char* colour,
             const std::string& title) {
  page.add(
      "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}</title>"
      "</rect>",
      kLabelWidth + from * kPlotWidth, row * kRowHeight + 5, std::max(0.0, share) * kPlotWidth,
      kBarHeight, colour, escape(title));
}

std::string unit_of(const BenchRow& row) { return row.tokens > 0 ? "tok/s" : "calls/s"; }

void add_shares(Page& page, const BenchResult& result) {
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
            bound.what == "memory" ? kColours[0] : kColours[1],
            fmt::format("{:.1f} % of {}", 100 * bound.share, bound.what));
    page.add("<text x=\"{:.1f}\" y=\"{}\">{:.0f} % of {}</text>",
             kLabelWidth + std::min(1.0, bound.share) * kPlotWidth + 6, i * kRowHeight + 18,
             100 * bound.share, escape(bound.what));
  }
  page.add("</svg>");
}

void add_breakdown(Page& page, const BenchResult& result) {
  page.add("<h2>Where the time goes</h2>");
  page.add("<p>By op, in one profiled repetition; white: between ops.</p>");
  std::map<std::string, const char*> colours;
  const auto colour_of = [&](const std::string& name) {
    const auto [it, is_new] = colours.try_emplace(name, nullptr);
    if (is_new) it->second = kColours[(colours.size() - 1) % kColours.size()];
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
        colour, escape(name));
  }
  page.add("<p>{}</p>", legend);
}

void add_table(Page& page, const BenchResult& result) {
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
        escape(row.test), row.batch, row.threads, row.depth, row.rate(), unit_of(row),
        row.min_rate(), 100 * row.spread(), bytes / 1e9, bytes / 1e9 / row.median_seconds(),
        operations / 1e9, operations / 1e9 / row.median_seconds(), escape(bound.what),
        100 * bound.share);
  }
  page.add("</table>");
}

}  // namespace

std::string to_html(const BenchResult& result) {
  const Environment& e = result.environment;
  Page page;
  page.add("<!DOCTYPE html>");
  page.add("<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>braid bench: {}</title>",
           escape(result.model));
  page.add(
      "<style>body {{ font: 14px sans-serif; margin: 2em; }} table {{ border-collapse: "
      "collapse; }} th, td {{ padding: 0.2em 0.7em; text-align: right; border-bottom: 1px "
      "solid #ddd; }} svg text {{ font: 12px sans-serif; }}</style></head><body>");
  page.add("<h1>{}</h1>", escape(result.model));
  page.add(
      "<p>{}; weights: {}; compute: {}.<br/>{}, {} processors, {}; {}; commit {}; {}.<br/>"
      "<code>{}</code></p>",
      escape(result.family), escape(result.weights), escape(result.compute), escape(e.cpu),
      e.processors, escape(e.isa), escape(e.compiler),
      e.commit.empty() ? "unknown" : escape(e.commit), escape(e.date), escape(e.command));
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
  page.add("</body></html>");
  return page.take();
}

}  // namespace braid

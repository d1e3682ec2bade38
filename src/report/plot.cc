#include "report/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/html_page.h"

namespace braid {
namespace {

constexpr double kWidth = 760, kHeight = 300;
constexpr double kLeft = 80, kRight = 16, kTop = 12, kBottom = 48;
constexpr double kInnerWidth = kWidth - kLeft - kRight, kInnerHeight = kHeight - kTop - kBottom;
constexpr size_t kMostLabels = 30;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // So that it can be divided by its width.
  void make_proper() {
    if (!(low <= high)) low = 0, high = 1;
    if (low == high) low -= 0.5, high += 0.5;
  }
};

std::string number(double value) { return fmt::format("{:.4g}", value); }

class Canvas {
 public:
  Canvas() {
    line("<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">", kWidth,
         kHeight);
  }

  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void text(double x, double y, const char* anchor, const std::string& what) {
    line("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", x, y, anchor,
         escape_html(what));
  }
  void labels(const std::string& x_label, const std::string& y_label) {
    text(kLeft + kInnerWidth / 2, kHeight - 6, "middle", x_label);
    line("<text transform=\"translate(14 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
         kTop + kInnerHeight / 2, escape_html(y_label));
  }
  void y_tick(double y, const std::string& label) {
    line("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>", kLeft,
         kLeft + kInnerWidth, y);
    text(kLeft - 6, y + 4, "end", label);
  }
  std::string take() { return std::move(text_) + "</svg>\n"; }

 private:
  std::string text_;
};

double to_x(double value, const Range& range) {
  return kLeft + kInnerWidth * (value - range.low) / (range.high - range.low);
}
double to_y(double value, const Range& range) {
  return kTop + kInnerHeight * (range.high - value) / (range.high - range.low);
}

void fit_to_ticks(Range& range, const std::vector<double>& ticks) {
  range.low = ticks.front();
  range.high = ticks.back();
}

void add_legend(Canvas& canvas, const std::vector<PlotLine>& lines) {
  double x = kLeft + 10;
  for (size_t i = 0; i < lines.size(); ++i) {
    canvas.line("<rect x=\"{:.1f}\" y=\"{}\" width=\"12\" height=\"4\" fill=\"{}\"/>", x, kTop + 4,
                kPlotColours[i % kPlotColours.size()]);
    canvas.text(x + 16, kTop + 10, "start", lines[i].name);
    x += 36 + 7.0 * static_cast<double>(lines[i].name.size());
  }
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  if (!(high > low)) high = low + 1;
  const double raw = (high - low) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const auto first = static_cast<int64_t>(std::floor(low / step + 1e-9));
  for (int64_t i = first;; ++i) {
    ticks.push_back(static_cast<double>(i) * step);
    if (ticks.back() >= high - 1e-9 * step) return ticks;
  }
}

std::string to_svg(const LinePlot& plot) {
  Range x_range, y_range;
  for (const PlotLine& line : plot.lines) {
    for (const double x : line.x) x_range.add(x);
    for (const double y : line.y) y_range.add(y);
  }
  x_range.make_proper();
  y_range.make_proper();
  const std::vector<double> y_ticks = round_ticks(y_range.low, y_range.high);
  fit_to_ticks(y_range, y_ticks);
  const std::vector<double> x_ticks = round_ticks(x_range.low, x_range.high, 8);

  Canvas canvas;
  canvas.labels(plot.x_label, plot.y_label);
  for (const double tick : y_ticks) canvas.y_tick(to_y(tick, y_range), number(tick));
  for (const double tick : x_ticks) {
    if (tick < x_range.low || tick > x_range.high) continue;
    canvas.text(to_x(tick, x_range), kTop + kInnerHeight + 16, "middle", number(tick));
  }
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const PlotLine& line = plot.lines[i];
    std::string path;
    bool pen_down = false;
    for (size_t p = 0; p < line.x.size(); ++p) {
      if (!std::isfinite(line.x[p]) || !std::isfinite(line.y[p])) {
        pen_down = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f} ", pen_down ? "L" : "M", to_x(line.x[p], x_range),
                          to_y(line.y[p], y_range));
      pen_down = true;
    }
    if (path.empty()) continue;
    canvas.line("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>", path,
                kPlotColours[i % kPlotColours.size()]);
  }
  add_legend(canvas, plot.lines);
  return canvas.take();
}

std::string to_svg(const BarPlot& plot) {
  const auto scaled = [&](double value) { return plot.log_scale ? std::log10(value) : value; };
  const auto half_width = [](const PlotBar& bar) {
    return std::isfinite(bar.half_width) ? bar.half_width : 0.0;
  };
  Range range;
  if (!plot.log_scale) range.add(0);
  for (const PlotBar& bar : plot.bars) {
    range.add(scaled(bar.value));
    if (half_width(bar) == 0) continue;
    range.add(scaled(bar.value - half_width(bar)));
    range.add(scaled(bar.value + half_width(bar)));
  }
  range.make_proper();
  std::vector<double> ticks;
  if (plot.log_scale) {
    for (double tick = std::floor(range.low - 0.1); tick < range.high + 1; ++tick)
      ticks.push_back(tick);
  } else {
    ticks = round_ticks(range.low, range.high);
  }
  fit_to_ticks(range, ticks);
  const double base = to_y(plot.log_scale ? range.low : 0, range);

  Canvas canvas;
  canvas.labels(plot.x_label, plot.y_label);
  for (const double tick : ticks) {
    canvas.y_tick(to_y(tick, range), plot.log_scale ? fmt::format("1e{:.0f}", tick) : number(tick));
  }
  const double pitch = kInnerWidth / static_cast<double>(std::max<size_t>(plot.bars.size(), 1));
  const size_t label_step = (plot.bars.size() + kMostLabels - 1) / kMostLabels;
  for (size_t i = 0; i < plot.bars.size(); ++i) {
    const PlotBar& bar = plot.bars[i];
    const double middle = kLeft + pitch * (static_cast<double>(i) + 0.5);
    if (i % label_step == 0) {
      canvas.text(middle, kTop + kInnerHeight + 16, "middle", bar.label);
    }
    const double value = scaled(bar.value);
    if (!std::isfinite(value)) continue;
    const double y = to_y(value, range);
    canvas.line(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
        "fill=\"{}\"><title>{}</title></rect>",
        middle - pitch * 0.35, std::min(y, base), pitch * 0.7, std::abs(y - base), kPlotColours[0],
        escape_html(bar.title.empty() ? bar.label + ": " + number(bar.value) : bar.title));
    if (half_width(bar) == 0) continue;
    const double top = to_y(scaled(bar.value + half_width(bar)), range);
    const double bottom = to_y(scaled(bar.value - half_width(bar)), range);
    if (!std::isfinite(top) || !std::isfinite(bottom)) continue;
    canvas.line(
        "<path d=\"M{0:.1f} {1:.1f} V{2:.1f} M{3:.1f} {1:.1f} H{4:.1f} M{3:.1f} {2:.1f} "
        "H{4:.1f}\" stroke=\"#000\"/>",
        middle, top, bottom, middle - 5, middle + 5);
  }
  canvas.line("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#000\"/>", kLeft,
              kLeft + kInnerWidth, base);
  return canvas.take();
}

}  // namespace braid

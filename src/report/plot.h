#pragma once

#include <string>
#include <vector>

namespace braid {

// Plots as <svg> elements. Values that are not finite leave a gap.

struct PlotLine {
  std::string name;
  std::vector<double> x, y;  // as many of each
};
struct LinePlot {
  std::string x_label, y_label;
  std::vector<PlotLine> lines;
};
std::string to_svg(const LinePlot& plot);

struct PlotBar {
  std::string label;
  double value = 0;
  double half_width = 0;  // of the interval drawn around the value; 0 or not finite: none
  std::string title;      // shown under the pointer
};
// Upright bars from zero, side by side. More than about 30: only some labels are written.
struct BarPlot {
  std::string x_label, y_label;
  std::vector<PlotBar> bars;
  bool log_scale = false;  // of the values, which must then be positive; bars start below the least
};
std::string to_svg(const BarPlot& plot);

// Round numbers that divide [low, high] into about `count` parts, from at most `low` to at least
// `high`.
std::vector<double> round_ticks(double low, double high, int count = 5);

}  // namespace braid

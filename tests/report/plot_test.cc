#include "report/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "report/html_page.h"
#include "support/fresh_seed.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(RoundTicks, CoverTheRangeWithRoundSteps) {
  testing::FreshRandom random;
  for (int round = 0; round < 200; ++round) {
    const double scale = std::pow(10.0, static_cast<double>(random.integer(-6, 6)));
    const double low = static_cast<double>(random.integer(-1000, 1000)) * scale;
    const double high = low + static_cast<double>(random.integer(1, 1000)) * scale;
    const std::vector<double> ticks = round_ticks(low, high);
    ASSERT_GE(ticks.size(), 2u);
    ASSERT_LE(ticks.size(), 8u) << low << " to " << high;
    const double step = ticks[1] - ticks[0];
    EXPECT_LE(ticks.front(), low + 1e-6 * step);
    EXPECT_GE(ticks.back(), high - 1e-6 * step);
    EXPECT_GT(ticks[1], low - 1e-6 * step);
    const double leading = step / std::pow(10.0, std::floor(std::log10(step) + 1e-9));
    EXPECT_TRUE(std::abs(leading - 1) < 1e-6 || std::abs(leading - 2) < 1e-6 ||
                std::abs(leading - 5) < 1e-6)
        << step;
  }
}

TEST(Plots, NothingThatIsNotFiniteReachesThePage) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string lines =
      to_svg(LinePlot{.x_label = "x",
                      .y_label = "y",
                      .lines = {{"a", {1, 2, 3, 4}, {1, nan, 2, infinity}}, {"empty", {}, {}}}});
  EXPECT_THAT(lines, Not(HasSubstr("nan")));
  EXPECT_THAT(lines, Not(HasSubstr("inf")));
  EXPECT_EQ(count(lines, "<path"), 1u);
  EXPECT_EQ(count(lines, "M"), 2u) << "a gap, not a line across it";
  const std::string bars = to_svg(BarPlot{.x_label = "x",
                                          .y_label = "y",
                                          .bars = {{.label = "a", .value = -1, .half_width = nan},
                                                   {.label = "b", .value = 2, .half_width = 0.5},
                                                   {.label = "c", .value = nan}}});
  EXPECT_THAT(bars, Not(HasSubstr("nan")));
  EXPECT_EQ(count(bars, "<rect"), 2u);
  EXPECT_EQ(count(bars, "<path"), 1u);
  const std::string log =
      to_svg(BarPlot{.x_label = "x",
                     .y_label = "y",
                     .bars = {{.label = "a", .value = 0}, {.label = "b", .value = 1e-3}},
                     .log_scale = true});
  EXPECT_THAT(log, Not(HasSubstr("inf")));
  EXPECT_EQ(count(log, "<rect"), 1u);
  EXPECT_THAT(to_svg(BarPlot{}), HasSubstr("</svg>"));
}

TEST(Html, TextCannotBecomeMarkup) {
  EXPECT_EQ(escape_html("<a href=\"x\">&\n</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;?&lt;/a&gt;");
  HtmlPage page("<t>");
  page.add("<p>{}</p>", escape_html("1 < 2"));
  const std::string text = page.take();
  EXPECT_THAT(text, HasSubstr("<title>&lt;t&gt;</title>"));
  EXPECT_THAT(text, HasSubstr("<p>1 &lt; 2</p>"));
  EXPECT_TRUE(text.ends_with("</body></html>\n"));
}

}  // namespace
}  // namespace braid

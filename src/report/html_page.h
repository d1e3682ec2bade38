#pragma once

#include <fmt/format.h>

#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace braid {

// Colours that stay apart in grey and for the colour-blind (after Okabe and Ito).
inline constexpr std::array<const char*, 8> kPlotColours = {
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"};

// For element contents and attributes; control characters, which XML has no place for, become '?'.
std::string escape_html(std::string_view text);

// A page that needs no other file, built line by line. Well-formed XML if what is added is.
class HtmlPage {
 public:
  explicit HtmlPage(std::string_view title);

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  // Ends the page; nothing may be added afterwards.
  std::string take();

 private:
  std::string text_;
};

}  // namespace braid

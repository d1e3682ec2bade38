#include "report/html_page.h"

namespace braid {

std::string escape_html(std::string_view text) {
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

HtmlPage::HtmlPage(std::string_view title) {
  add("<!DOCTYPE html>");
  add("<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{}</title>", escape_html(title));
  add("<style>body {{ font: 14px sans-serif; margin: 2em; }} table {{ border-collapse: "
      "collapse; }} th, td {{ padding: 0.2em 0.7em; text-align: right; border-bottom: 1px "
      "solid #ddd; }} td {{ white-space: nowrap; }} td.text {{ text-align: left; white-space: "
      "normal; }} svg text {{ font: 12px sans-serif; "
      "}}</style></head><body>");
}

std::string HtmlPage::take() {
  add("</body></html>");
  return std::move(text_);
}

}  // namespace braid

#include "tokenizer/jinja/filters.h"

#include <algorithm>
#include <unordered_map>

namespace braid::jinja {

const Filter* find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, const Filter*> table = [] {
    std::unordered_map<std::string_view, const Filter*> all;
    for (std::span<const Filter> group : {text_filters(), number_filters(), sequence_filters()}) {
      for (const Filter& filter : group) all.emplace(filter.name, &filter);
    }
    return all;
  }();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

bool is_jinja2_filter(std::string_view name) {
  static constexpr std::string_view kOthers[] = {
      "filesizeformat", "groupby", "pprint",  "random",   "striptags",  "truncate",
      "urlencode",      "urlize",  "xmlattr", "wordwrap", "forceescape"};
  return find_filter(name) != nullptr ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

}  // namespace braid::jinja

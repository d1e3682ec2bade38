#include <string>

#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/json.h"
#include "tokenizer/jinja/lookup.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/printf.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

// jinja2's soft_str: strings as they are, the text of anything else.
Value soft_string(Runtime& runtime, const Value& input) {
  return input.is_string() ? input : runtime.new_string(runtime.text(input));
}

// Calls a string method on the text of the input.
Value call_method(Runtime& runtime, const Value& input, std::string_view name,
                  Arguments arguments = {}) {
  return runtime.call(*find_method(soft_string(runtime, input), name), std::move(arguments));
}

Value trim(Runtime& runtime, const Value& input, Arguments arguments) {
  Bound bound = bind("trim", std::move(arguments), {"chars"}, 0);
  Arguments inner;
  if (bound.has(0)) inner.positional.push_back(bound[0]);
  return call_method(runtime, input, "strip", std::move(inner));
}

Value upper(Runtime& runtime, const Value& input, Arguments arguments) {
  return call_method(runtime, input, "upper", std::move(arguments));
}

Value lower(Runtime& runtime, const Value& input, Arguments arguments) {
  return call_method(runtime, input, "lower", std::move(arguments));
}

Value capitalize_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  return call_method(runtime, input, "capitalize", std::move(arguments));
}

// Each word begins upper case, the rest is lower case; words end at white space, - ( { [ and <.
Value title(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("title", std::move(arguments), {}, 0);
  const std::string text = soft_string(runtime, input).as_string();
  std::string result;
  const auto flush = [&result](std::string_view word) {
    if (word.empty()) return;
    size_t first = 0;
    next_code_point(word, first);
    result += to_upper(word.substr(0, first));
    result += to_lower(word.substr(first));
  };
  size_t start = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t at = position;
    const char32_t c = next_code_point(text, position);
    if (is_space(c) || c == U'-' || c == U'(' || c == U'{' || c == U'[' || c == U'<') {
      flush(std::string_view(text).substr(start, at - start));
      result += text.substr(at, position - at);
      start = position;
    }
  }
  flush(std::string_view(text).substr(start));
  return runtime.new_string(std::move(result));
}

Value replace(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("replace", std::move(arguments), {"old", "new", "count"}, 2);
  Arguments inner;
  inner.positional = {Value::string(runtime.text(bound[0])), Value::string(runtime.text(bound[1]))};
  if (bound.has_not_none(2)) inner.positional.push_back(bound[2]);
  return runtime.call(*find_method(Value::string(runtime.text(input)), "replace"),
                      std::move(inner));
}

Value center(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("center", std::move(arguments), {"width"}, 0);
  Arguments inner;
  inner.positional.push_back(bound.has(0) ? bound[0] : Value::integer(80));
  return call_method(runtime, input, "center", std::move(inner));
}

Value indent(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("indent", std::move(arguments), {"width", "first", "blank"}, 0);
  std::string margin(4, ' ');
  if (bound.has(0) && bound[0].is_string()) {
    margin = bound[0].as_string();
  } else if (bound.has(0)) {
    const int64_t width = std::max<int64_t>(bound.integer(0, 4), 0);
    runtime.budget.charge(static_cast<size_t>(width));
    margin.assign(static_cast<size_t>(width), ' ');
  }
  if (!input.is_string()) throw Failure("indent needs a string, not {}", type_name(input));
  const std::string text = input.as_string() + "\n";  // jinja2's trick to keep an empty last line
  const bool blank = bound.flag(2, false);
  std::string result = bound.flag(1, false) ? margin : "";
  bool first = true;
  for (std::string_view line : split_lines(text, false)) {
    runtime.budget.charge(margin.size() + line.size());
    if (!first) {
      result += '\n';
      if (blank || !line.empty()) result += margin;
    }
    first = false;
    result += line;
  }
  return runtime.new_string(std::move(result));
}

Value to_json(Runtime& runtime, const Value& input, Arguments arguments) {
  const Bound bound = bind("tojson", std::move(arguments),
                           {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  if (bound.has_not_none(1)) {
    if (bound[1].is_string()) {
      style.indent = bound[1].as_string();
    } else {
      const int64_t width = std::max<int64_t>(bound.integer(1, 0), 0);
      runtime.budget.charge(static_cast<size_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator.assign(1, ',');  // not = ",": GCC 12 warns of an overlap
  }
  if (bound.has_not_none(2)) {
    const ValueList separators = iterate(bound[2]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      throw Failure("separators must be two strings");
    }
    style.item_separator = separators[0].as_string();
    style.key_separator = separators[1].as_string();
  }
  style.sort_keys = bound.flag(3, false);
  return runtime.new_string(dump_json(input, style, runtime.budget));
}

Value string_filter(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("string", std::move(arguments), {}, 0);
  return soft_string(runtime, input);
}

Value safe(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("safe", std::move(arguments), {}, 0);
  return Value::markup(runtime.text(input));
}

Value escape(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("escape", std::move(arguments), {}, 0);
  if (input.is_markup()) return input;
  return Value::markup(html_escape(runtime.text(input)));
}

Value format(Runtime& runtime, const Value& input, Arguments arguments) {
  if (!arguments.positional.empty() && !arguments.keyword.empty()) {
    throw Failure("can't handle positional and keyword arguments at the same time");
  }
  Value values;
  if (arguments.keyword.empty()) {
    values = Value::tuple(std::move(arguments.positional));
  } else {
    Dict dict;
    for (auto& [name, value] : arguments.keyword) dict.set(name, std::move(value));
    values = Value::dict(std::move(dict));
  }
  const Value text = soft_string(runtime, input);
  return Value::string_like(text, format_percent(text, values, runtime));
}

Value word_count(Runtime& runtime, const Value& input, Arguments arguments) {
  bind("wordcount", std::move(arguments), {}, 0);
  const std::string text = runtime.text(input);
  int64_t words = 0;
  bool in_word = false;
  for (size_t position = 0; position < text.size();) {
    const bool word = is_word(next_code_point(text, position));
    words += word && !in_word ? 1 : 0;
    in_word = word;
  }
  return Value::integer(words);
}

constexpr Filter kFilters[] = {{"trim", trim},
                               {"upper", upper},
                               {"lower", lower},
                               {"capitalize", capitalize_filter},
                               {"title", title},
                               {"replace", replace},
                               {"center", center},
                               {"indent", indent},
                               {"tojson", to_json},
                               {"string", string_filter},
                               {"safe", safe},
                               {"escape", escape},
                               {"e", escape},
                               {"format", format},
                               {"wordcount", word_count}};

}  // namespace

std::span<const Filter> text_filters() { return kFilters; }

}  // namespace braid::jinja

#include "tokenizer/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tokenizer/jinja/repr.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

// Builds values as nlohmann's parser reports them.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Value result;
  std::string message;

  bool null() override { return add(Value::none()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX))
      return add(Value::big_integer(std::to_string(value)));
    return add(Value::integer(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == std::string::npos) return add(Value::big_integer(text));
    return add(Value::floating(value));
  }
  bool string(string_t& value) override { return add(Value::string(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(true); }
  bool key(string_t& value) override {
    open_.back().key = value;
    return true;
  }
  bool end_object() override {
    Value value = Value::dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(value));
  }
  bool start_array(size_t) override { return open(false); }
  bool end_array() override {
    Value value = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    message = fmt::format("invalid JSON at byte {}: {}", position, error.what());
    return false;
  }

 private:
  struct Container {
    bool is_object;
    std::string key;
    Dict dict;
    ValueList items;
  };

  bool open(bool is_object) {
    if (open_.size() >= static_cast<size_t>(kMaxValueDepth)) {
      message = fmt::format("JSON nested deeper than {} levels", kMaxValueDepth);
      return false;
    }
    open_.push_back({is_object, {}, {}, {}});
    return true;
  }

  bool add(Value value) {
    if (open_.empty()) {
      result = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().dict.set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Container> open_;
};

void append_string(std::string& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  for (size_t position = 0; position < text.size();) {
    const size_t start = position;
    const char32_t c = next_code_point(text, position);
    switch (c) {
      case U'"':
        out += "\\\"";
        break;
      case U'\\':
        out += "\\\\";
        break;
      case U'\n':
        out += "\\n";
        break;
      case U'\r':
        out += "\\r";
        break;
      case U'\t':
        out += "\\t";
        break;
      case U'\f':
        out += "\\f";
        break;
      case U'\b':
        out += "\\b";
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7F && c < 0x10000)) {
          out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
        } else if (ensure_ascii && c >= 0x10000) {
          const uint32_t offset = static_cast<uint32_t>(c) - 0x10000;
          out +=
              fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (offset >> 10), 0xDC00 + (offset & 0x3FF));
        } else {
          out += text.substr(start, position - start);
        }
    }
  }
  out += '"';
}

class Dumper {
 public:
  Dumper(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  std::string out;

  void write(const Value& value, int level) {
    const Budget::Level nested(budget_);
    budget_.charge(16);
    switch (value.kind()) {
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kBigInt:
      case Kind::kFloat:
        out += scalar(value);
        return;
      case Kind::kString:
        budget_.charge(value.as_string().size());
        append_string(out, value.as_string(), style_.ensure_ascii);
        return;
      case Kind::kList:
      case Kind::kTuple:
        write_list(value.as_items(), level);
        return;
      case Kind::kDict:
        write_dict(value.as_dict(), level);
        return;
      default:
        throw Failure("Object of type {} is not JSON serializable", type_name(value));
    }
  }

 private:
  static std::string scalar(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return value.as_bool() ? "true" : "false";
      case Kind::kInt:
        return std::to_string(value.as_integer());
      case Kind::kBigInt:
        return value.as_string();
      default:
        break;
    }
    const double number = value.as_double();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return float_text(number);
  }

  static std::string key(const Value& value) {
    switch (value.kind()) {
      case Kind::kString:
        return value.as_string();
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kBigInt:
      case Kind::kFloat:
        return scalar(value);
      default:
        throw Failure("keys must be str, int, float, bool or None, not {}", type_name(value));
    }
  }

  void line_break(int level) {
    if (!style_.indent) return;
    out += '\n';
    budget_.charge(style_.indent->size() * static_cast<size_t>(level));
    for (int i = 0; i < level; ++i) out += *style_.indent;
  }

  void write_list(const ValueList& items, int level) {
    if (items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      line_break(level + 1);
      write(items[i], level + 1);
    }
    line_break(level);
    out += ']';
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.size() == 0) {
      out += "{}";
      return;
    }
    std::vector<std::pair<std::string, const Value*>> entries;
    for (const auto& [name, value] : dict.entries()) {
      if (style_.sort_keys && name.kind() != dict.entries().front().first.kind()) {
        throw Failure("'<' not supported between instances of '{}' and '{}'", type_name(name),
                      type_name(dict.entries().front().first));
      }
      entries.emplace_back(key(name), &value);
    }
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    out += '{';
    bool first = true;
    for (const auto& [name, value] : entries) {
      if (!first) out += style_.item_separator;
      first = false;
      line_break(level + 1);
      budget_.charge(name.size());
      append_string(out, name, style_.ensure_ascii);
      out += style_.key_separator;
      write(*value, level + 1);
    }
    line_break(level);
    out += '}';
  }

  const JsonStyle& style_;
  Budget& budget_;
};

}  // namespace

Value parse_json(std::string_view text) {
  Builder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    throw Failure(builder.message.empty() ? std::string("invalid JSON") : builder.message);
  }
  return builder.result;
}

std::string dump_json(const Value& value, const JsonStyle& style, Budget& budget) {
  Dumper dumper(style, budget);
  dumper.write(value, 0);
  return std::move(dumper.out);
}

}  // namespace braid::jinja

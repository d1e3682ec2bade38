#include "tokenizer/jinja/globals.h"

#include <array>
#include <ctime>
#include <memory>
#include <unordered_map>

#include "tokenizer/jinja/runtime.h"

namespace braid::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // as in jinja2's sandbox

Value make_range(Runtime&, Arguments arguments) {
  const Bound bound = bind("range", std::move(arguments), {"start", "stop", "step"}, 1);
  auto range = std::make_shared<RangeObject>();
  range->start = bound.has(1) ? bound.integer(0, 0) : 0;
  range->stop = bound.has(1) ? bound.integer(1, 0) : bound.integer(0, 0);
  range->step = bound.integer(2, 1);
  if (range->step == 0) throw Failure("range() arg 3 must not be zero");
  int64_t span = 0;
  if (range->step == INT64_MIN || __builtin_sub_overflow(range->stop, range->start, &span) ||
      range->size() > kMaxRange) {
    throw Failure("range too big: at most {} items are allowed", kMaxRange);
  }
  return Value::from_object(Kind::kRange, std::move(range));
}

Dict dict_from(Runtime& runtime, Arguments arguments) {
  if (arguments.positional.size() > 1) {
    throw Failure("dict expected at most 1 argument, got {}", arguments.positional.size());
  }
  Dict dict;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional.front();
    if (source.is_dict()) {
      dict = source.as_dict();
    } else {
      for (const Value& pair : iterate(source)) {
        const ValueList parts = iterate(pair);
        if (parts.size() != 2) {
          throw Failure("dictionary update sequence element has length {}; 2 is required",
                        parts.size());
        }
        dict.set(parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.keyword) dict.set(name, std::move(value));
  runtime.budget.charge_values(dict.size() + 1);
  return dict;
}

Value make_dict(Runtime& runtime, Arguments arguments) {
  return Value::dict(dict_from(runtime, std::move(arguments)));
}

Value make_namespace(Runtime& runtime, Arguments arguments) {
  Dict attributes = dict_from(runtime, std::move(arguments));
  for (const auto& [name, value] : attributes.entries()) {
    if (name.is_string() && name.as_string().starts_with('_')) {
      throw Failure("a namespace cannot hold the underscore-prefixed attribute '{}'",
                    name.as_string());
    }
  }
  return runtime.make_namespace(std::move(attributes));
}

Value raise_exception(Runtime& runtime, Arguments arguments) {
  const Bound bound = bind("raise_exception", std::move(arguments), {"message"}, 1);
  throw Failure(runtime.text(bound[0]));
}

Value strftime_now(Runtime& runtime, Arguments arguments) {
  const Bound bound = bind("strftime_now", std::move(arguments), {"format"}, 1);
  const std::string format = bound.text(0, "");
  if (format.empty()) return Value::string("");
  if (format.size() > 1000) throw Failure("the format of strftime_now is too long");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(format.size() * 64 + 64, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return runtime.new_string(std::move(out));
}

// joiner(", ") gives "" at first and then its separator.
Value make_joiner(Runtime& runtime, Arguments arguments) {
  const Bound bound = bind("joiner", std::move(arguments), {"sep"}, 0);
  const Value separator =
      bound.has(0) ? Value::string(runtime.text(bound[0])) : Value::string(", ");
  auto used = std::make_shared<bool>(false);
  return make_function("joiner", [separator, used](Runtime&, Arguments) {
    if (*used) return separator;
    *used = true;
    return Value::string("");
  });
}

}  // namespace

Value find_global(std::string_view name) {
  static const std::unordered_map<std::string_view, FunctionObject::Body> table = {
      {"range", make_range},          {"dict", make_dict},
      {"namespace", make_namespace},  {"raise_exception", raise_exception},
      {"strftime_now", strftime_now}, {"joiner", make_joiner},
  };
  const auto found = table.find(name);
  if (found == table.end()) return Value();
  return make_function(std::string(name), found->second);
}

}  // namespace braid::jinja

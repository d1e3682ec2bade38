#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/budget.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// Evaluated arguments of a call.
struct Arguments {
  ValueList positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

// Arguments matched to a function's parameters; one left out is not set.
class Bound {
 public:
  explicit Bound(size_t count) : values_(count) {}
  void put(size_t index, Value value) { values_[index] = std::move(value); }
  bool has(size_t index) const { return values_[index].has_value(); }
  bool has_not_none(size_t index) const { return has(index) && !values_[index]->is_none(); }
  const Value& operator[](size_t index) const { return *values_[index]; }

  bool flag(size_t index, bool fallback) const;
  int64_t integer(size_t index, int64_t fallback) const;            // Failure for another type
  std::string text(size_t index, std::string_view fallback) const;  // Failure for another type

 private:
  std::vector<std::optional<Value>> values_;
};

// Matches arguments as Python does; `required` parameters come first. Throws Failure naming
// `function` for a missing, surplus or unknown argument.
Bound bind(std::string_view function, Arguments arguments,
           std::initializer_list<std::string_view> parameters, size_t required);

// What built-in functions may use of the running template.
class Runtime {
 public:
  explicit Runtime(const Limits& limits) : budget(limits) {}
  virtual ~Runtime() = default;

  virtual Value call(const Value& callee, Arguments arguments) = 0;
  // A namespace that lives as long as the rendering.
  virtual Value make_namespace(Dict attributes) = 0;

  std::string text(const Value& value);
  // A string value; charges its size.
  Value new_string(std::string text);

  Budget budget;
};

struct FunctionObject : Object {
  using Body = std::function<Value(Runtime&, Arguments)>;
  FunctionObject(std::string function_name, Body function_body)
      : name(std::move(function_name)), body(std::move(function_body)) {}
  std::string name;
  Body body;
};

// `self` is what the body holds on to, if anything.
Value make_function(std::string name, FunctionObject::Body body, const Value& self = Value());

}  // namespace braid::jinja

#include "tokenizer/jinja/runtime.h"

#include <algorithm>

#include "tokenizer/jinja/repr.h"

namespace braid::jinja {

bool Bound::flag(size_t index, bool fallback) const {
  return has(index) ? truthy((*this)[index]) : fallback;
}

int64_t Bound::integer(size_t index, int64_t fallback) const {
  if (!has(index)) return fallback;
  const Value& value = (*this)[index];
  if (!value.is_integral()) {
    throw Failure("'{}' object cannot be interpreted as an integer", type_name(value));
  }
  return value.as_integer();
}

std::string Bound::text(size_t index, std::string_view fallback) const {
  if (!has(index)) return std::string(fallback);
  const Value& value = (*this)[index];
  if (!value.is_string()) throw Failure("expected str, got {}", type_name(value));
  return value.as_string();
}

Bound bind(std::string_view function, Arguments arguments,
           std::initializer_list<std::string_view> parameters, size_t required) {
  Bound bound(parameters.size());
  if (arguments.positional.size() > parameters.size()) {
    throw Failure("{}() takes at most {} arguments ({} given)", function, parameters.size(),
                  arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.put(i, std::move(arguments.positional[i]));
  }
  for (auto& [name, value] : arguments.keyword) {
    const auto place = std::find(parameters.begin(), parameters.end(), name);
    if (place == parameters.end()) {
      throw Failure("{}() got an unexpected keyword argument '{}'", function, name);
    }
    const auto index = static_cast<size_t>(place - parameters.begin());
    if (bound.has(index)) {
      throw Failure("{}() got multiple values for argument '{}'", function, name);
    }
    bound.put(index, std::move(value));
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound.has(i)) {
      throw Failure("{}() missing required argument '{}'", function, *(parameters.begin() + i));
    }
  }
  return bound;
}

std::string Runtime::text(const Value& value) { return to_text(value, budget); }

Value Runtime::new_string(std::string text) {
  budget.charge(text.size() + 32);
  return Value::string(std::move(text));
}

Value make_function(std::string name, FunctionObject::Body body, const Value& self) {
  auto function = std::make_shared<FunctionObject>(std::move(name), std::move(body));
  function->depth = container_depth(self.depth());
  return Value::from_object(Kind::kFunction, std::move(function));
}

}  // namespace braid::jinja

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// object.name and object[key] with jinja2's rules: an attribute (a Python method, a namespace or
// loop attribute) first for the dot, the item first for the brackets. What is not there is
// undefined; looking into an undefined value is a Failure.
Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key, Budget& budget);
// object[start:stop:step]; undefined for what cannot be sliced. Bounds are integers, None or
// absent.
Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step,
                Budget& budget);
// Follows a dotted path ("function.name", "0.id"), as the attribute arguments of filters do.
Value get_path(const Value& object, const Value& path, Budget& budget);

// The bound method of a string, dict, list or tuple; nothing if there is none. Methods that change
// their object are undefined values, an error once used.
std::optional<Value> find_method(const Value& object, std::string_view name);

}  // namespace braid::jinja

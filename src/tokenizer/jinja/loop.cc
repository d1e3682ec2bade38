#include "tokenizer/jinja/loop.h"

#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/runtime.h"

namespace braid::jinja {
namespace {

Value cycle(const Value& self, Arguments arguments) {
  if (arguments.positional.empty()) throw Failure("no items for cycling given");
  const auto& loop = self.object_as<LoopObject>();
  return arguments.positional[loop.index0 % arguments.positional.size()];
}

Value changed(Runtime& runtime, const Value& self, Arguments arguments) {
  auto& loop = self.object_as<LoopObject>();
  const ValueList& now = arguments.positional;
  bool differs = !loop.last_changed || loop.last_changed->size() != now.size();
  for (size_t i = 0; !differs && i < now.size(); ++i) {
    differs = !equal((*loop.last_changed)[i], now[i], runtime.budget);
  }
  if (differs) loop.last_changed = now;
  return Value::boolean(differs);
}

}  // namespace

std::optional<Value> loop_attribute(const Value& self, std::string_view name) {
  const auto& loop = self.object_as<LoopObject>();
  const auto index0 = static_cast<int64_t>(loop.index0);
  const auto length = static_cast<int64_t>(loop.items.size());
  if (name == "index0") return Value::integer(index0);
  if (name == "index") return Value::integer(index0 + 1);
  if (name == "revindex0") return Value::integer(length - index0 - 1);
  if (name == "revindex") return Value::integer(length - index0);
  if (name == "first") return Value::boolean(index0 == 0);
  if (name == "last") return Value::boolean(index0 + 1 >= length);
  if (name == "length") return Value::integer(length);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "previtem") {
    return index0 > 0 ? loop.items[loop.index0 - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index0 + 1 < length ? loop.items[loop.index0 + 1]
                               : Value::undefined("there is no next item");
  }
  if (name == "cycle") {
    return make_function(
        "cycle",
        [self](Runtime&, Arguments arguments) { return cycle(self, std::move(arguments)); }, self);
  }
  if (name == "changed") {
    return make_function(
        "changed",
        [self](Runtime& runtime, Arguments arguments) {
          return changed(runtime, self, std::move(arguments));
        },
        self);
  }
  return std::nullopt;
}

}  // namespace braid::jinja

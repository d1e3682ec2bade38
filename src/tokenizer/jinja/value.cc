#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/budget.h"
#include "tokenizer/jinja/text.h"

namespace braid::jinja {
namespace {

constexpr size_t kLinearDictSize = 8;

// Equal keys have equal text; nothing for values that Python cannot hash.
std::optional<std::string> key_text(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      return "s" + key.as_string();
    case Kind::kBool:
    case Kind::kInt:
      return fmt::format("i{}", key.as_integer());
    case Kind::kBigInt:
      return "i" + key.as_string();
    case Kind::kFloat: {
      const double value = key.as_double();
      if (value == std::trunc(value) && std::abs(value) < 9e18) {
        return fmt::format("i{}", static_cast<int64_t>(value));
      }
      return fmt::format("f{}", value);
    }
    case Kind::kNone:
      return "n";
    case Kind::kUndefined:
      return "u";
    case Kind::kTuple: {
      std::string text = "t";
      for (const Value& item : key.as_items()) {
        std::optional<std::string> part = key_text(item);
        if (!part) return std::nullopt;
        text += fmt::format("{}:", part->size());
        text += *part;
      }
      return text;
    }
    case Kind::kList:
    case Kind::kDict:
    case Kind::kView:
      return std::nullopt;
    case Kind::kNamespace:
      return fmt::format("p{}", static_cast<const void*>(&key.as_namespace()));
    case Kind::kMacro:
      return fmt::format("p{}", static_cast<const void*>(&key.as_macro()));
    default:
      return fmt::format("p{}", static_cast<const void*>(key.object().get()));
  }
}

std::string hashable_key_text(const Value& key) {
  std::optional<std::string> text = key_text(key);
  if (!text) throw Failure("unhashable type: '{}'", type_name(key));
  return *std::move(text);
}

}  // namespace

int container_depth(int deepest) {
  if (deepest + 1 > kMaxValueDepth) {
    throw Failure("values are nested deeper than {} levels", kMaxValueDepth);
  }
  return deepest + 1;
}

ItemsObject::ItemsObject(ValueList values) : items(std::move(values)) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  depth = container_depth(deepest);
}

DictObject::DictObject(Dict value) : dict(std::move(value)) {
  int deepest = 0;
  for (const auto& [key, item] : dict.entries()) {
    deepest = std::max({deepest, key.depth(), item.depth()});
  }
  depth = container_depth(deepest);
}

int64_t RangeObject::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

Value Value::undefined(std::string why) {
  Value result;
  result.object_ = std::make_shared<StringObject>(std::move(why));
  return result;
}

Value Value::none() {
  Value result;
  result.kind_ = Kind::kNone;
  return result;
}

Value Value::boolean(bool value) {
  Value result;
  result.kind_ = Kind::kBool;
  result.integer_ = value ? 1 : 0;
  return result;
}

Value Value::integer(int64_t value) {
  Value result;
  result.kind_ = Kind::kInt;
  result.integer_ = value;
  return result;
}

Value Value::big_integer(std::string digits) {
  Value result;
  result.kind_ = Kind::kBigInt;
  result.object_ = std::make_shared<StringObject>(std::move(digits));
  return result;
}

Value Value::floating(double value) {
  Value result;
  result.kind_ = Kind::kFloat;
  result.floating_ = value;
  return result;
}

Value Value::string(std::string text) {
  Value result;
  result.kind_ = Kind::kString;
  result.object_ = std::make_shared<StringObject>(std::move(text));
  return result;
}

Value Value::markup(std::string text) {
  Value result = string(std::move(text));
  result.markup_ = true;
  return result;
}

Value Value::string_like(const Value& model, std::string text) {
  Value result = string(std::move(text));
  result.markup_ = model.markup_;
  return result;
}

Value Value::list(ValueList items) {
  return from_object(Kind::kList, std::make_shared<ItemsObject>(std::move(items)));
}

Value Value::tuple(ValueList items) {
  return from_object(Kind::kTuple, std::make_shared<ItemsObject>(std::move(items)));
}

Value Value::dict(Dict entries) {
  return from_object(Kind::kDict, std::make_shared<DictObject>(std::move(entries)));
}

Value Value::iterator(ValueList items) {
  return from_object(Kind::kIterator, std::make_shared<IteratorObject>(std::move(items)));
}

Value Value::from_object(Kind kind, std::shared_ptr<Object> object) {
  Value result;
  result.kind_ = kind;
  result.object_ = std::move(object);
  return result;
}

Value Value::of_namespace(Namespace* target) {
  Value result;
  result.kind_ = Kind::kNamespace;
  result.namespace_ = target;
  return result;
}

Value Value::macro(const Macro* target) {
  Value result;
  result.kind_ = Kind::kMacro;
  result.macro_ = target;
  return result;
}

double Value::as_double() const {
  return kind_ == Kind::kFloat ? floating_ : static_cast<double>(integer_);
}

const std::string& Value::as_string() const {
  static const std::string kUnnamed = "value is undefined";
  return object_ ? static_cast<const StringObject&>(*object_).text : kUnnamed;
}

const ValueList& Value::as_items() const { return static_cast<const ItemsObject&>(*object_).items; }

const Dict& Value::as_dict() const { return static_cast<const DictObject&>(*object_).dict; }

bool Value::same_as(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
      return integer_ == other.integer_;
    case Kind::kFloat:
      return floating_ == other.floating_;
    case Kind::kNamespace:
      return namespace_ == other.namespace_;
    case Kind::kMacro:
      return macro_ == other.macro_;
    default:
      return object_ == other.object_;
  }
}

std::optional<size_t> Dict::position(const Value& key) const {
  if (index_.empty()) {
    if (key.is_string()) {
      for (size_t i = 0; i < entries_.size(); ++i) {
        if (entries_[i].first.is_string() && entries_[i].first.as_string() == key.as_string()) {
          return i;
        }
      }
      return std::nullopt;
    }
    const std::string text = hashable_key_text(key);
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].first.is_string() && hashable_key_text(entries_[i].first) == text) return i;
    }
    return std::nullopt;
  }
  const auto found = index_.find(hashable_key_text(key));
  if (found == index_.end()) return std::nullopt;
  return found->second;
}

void Dict::index_all() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    index_.emplace(hashable_key_text(entries_[i].first), i);
  }
}

const Value* Dict::find(const Value& key) const {
  const std::optional<size_t> found = position(key);
  return found ? &entries_[*found].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [name, value] : entries_) {
      if (name.is_string() && name.as_string() == key) return &value;
    }
    return nullptr;
  }
  const auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

void Dict::set(const Value& key, Value value) {
  if (const std::optional<size_t> found = position(key)) {
    entries_[*found].second = std::move(value);
    return;
  }
  if (!index_.empty()) index_.emplace(hashable_key_text(key), entries_.size());
  entries_.emplace_back(key, std::move(value));
  if (index_.empty() && entries_.size() > kLinearDictSize) index_all();
}

void Dict::set(std::string_view key, Value value) {
  set(Value::string(std::string(key)), std::move(value));
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.is_markup() ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      return value.object_as<ViewObject>().name;
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_integer() != 0;
    case Kind::kFloat:
      return value.as_double() != 0;
    case Kind::kString:
      return !value.as_string().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return !value.as_items().empty();
    case Kind::kDict:
      return value.as_dict().size() != 0;
    case Kind::kRange:
      return value.object_as<RangeObject>().size() != 0;
    default:
      return true;
  }
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kView:
    case Kind::kRange:
    case Kind::kIterator:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

ValueList iterate(const Value& value) {
  ValueList items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kString: {
      const std::string& text = value.as_string();
      for (size_t position = 0; position < text.size();) {
        const size_t start = position;
        next_code_point(text, position);
        items.push_back(Value::string_like(value, text.substr(start, position - start)));
      }
      return items;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return value.as_items();
    case Kind::kDict:
      for (const auto& entry : value.as_dict().entries()) items.push_back(entry.first);
      return items;
    case Kind::kRange: {
      const auto& range = value.object_as<RangeObject>();
      for (int64_t i = 0; i < range.size(); ++i) items.push_back(Value::integer(range.at(i)));
      return items;
    }
    case Kind::kIterator: {
      auto& iterator = value.object_as<IteratorObject>();
      items.assign(iterator.items.begin() + static_cast<ptrdiff_t>(iterator.next),
                   iterator.items.end());
      iterator.next = iterator.items.size();
      return items;
    }
    default:
      throw Failure("'{}' object is not iterable", type_name(value));
  }
}

std::optional<int64_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(code_point_count(value.as_string()));
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return static_cast<int64_t>(value.as_items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as_dict().size());
    case Kind::kRange:
      return value.object_as<RangeObject>().size();
    default:
      return std::nullopt;
  }
}

}  // namespace braid::jinja

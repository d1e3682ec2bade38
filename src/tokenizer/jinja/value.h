#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace braid::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,  // an integer beyond 64 bits, kept as its digits
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,  // dict.items(), keys(), values()
  kRange,
  kIterator,  // one pass: what map(), select(), items ... give
  kNamespace,
  kLoop,
  kMacro,
  kFunction,
};

// Heap part of a value: reference counted, not changed after it was made (iterators and loops
// move their position only).
struct Object {
  virtual ~Object() = default;
  int depth = 0;  // containers inside containers, this one included
};

// Depth of a container whose deepest content has `deepest`; Failure beyond kMaxValueDepth, so that
// values can be printed, compared and destroyed by recursion.
int container_depth(int deepest);

struct Namespace;
struct Macro;
class Value;
using ValueList = std::vector<Value>;

// A Python-like value. Copies are cheap and share the heap part. Namespaces and macros belong to
// the rendering that made them; a value must not outlive it.
class Value {
 public:
  Value() = default;  // undefined without a name
  static Value undefined(std::string why);
  static Value none();
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value big_integer(std::string digits);
  static Value floating(double value);
  static Value string(std::string text);
  static Value markup(
      std::string text);  // a string that Python calls Markup: + escapes the other side
  static Value string_like(const Value& model, std::string text);  // markup if `model` is
  static Value list(ValueList items);
  static Value tuple(ValueList items);
  static Value dict(class Dict entries);
  static Value iterator(ValueList items);
  static Value from_object(Kind kind, std::shared_ptr<Object> object);
  static Value of_namespace(Namespace* target);
  static Value macro(const Macro* target);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_markup() const { return markup_; }
  // True for bool and int, which Python counts as integers.
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }

  bool as_bool() const { return integer_ != 0; }
  int64_t as_integer() const { return integer_; }          // kInt, kBool
  double as_double() const;                                // numbers
  const std::string& as_string() const;                    // kString, kBigInt, kUndefined (why)
  const ValueList& as_items() const;                       // kList, kTuple, kView
  const Dict& as_dict() const;                             // kDict
  Namespace& as_namespace() const { return *namespace_; }  // kNamespace
  const Macro& as_macro() const { return *macro_; }        // kMacro
  const std::shared_ptr<Object>& object() const { return object_; }
  template <typename T>
  T& object_as() const {
    return static_cast<T&>(*object_);
  }
  int depth() const { return object_ ? object_->depth : 0; }
  // The same object in the sense of Python's `is`.
  bool same_as(const Value& other) const;

 private:
  Kind kind_ = Kind::kUndefined;
  bool markup_ = false;
  union {
    int64_t integer_ = 0;
    double floating_;
    Namespace* namespace_;
    const Macro* macro_;
  };
  std::shared_ptr<Object> object_;
};

// Insertion-ordered map with Python's rules for equal keys (1, 1.0 and True are one key).
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  size_t size() const { return entries_.size(); }
  const std::vector<Entry>& entries() const { return entries_; }
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;  // throws Failure for an unhashable key
  void set(const Value& key, Value value);
  void set(std::string_view key, Value value);

 private:
  std::optional<size_t> position(const Value& key) const;
  void index_all();

  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> index_;  // filled once the dict is no longer small
};

struct StringObject : Object {
  explicit StringObject(std::string value) : text(std::move(value)) {}
  std::string text;
};

struct ItemsObject : Object {
  explicit ItemsObject(ValueList values);
  ValueList items;
};

struct ViewObject : ItemsObject {
  ViewObject(const char* python_name, ValueList values)
      : ItemsObject(std::move(values)), name(python_name) {}
  const char* name;
};

struct IteratorObject : ItemsObject {
  using ItemsObject::ItemsObject;
  size_t next = 0;
};

struct DictObject : Object {
  explicit DictObject(Dict value);
  Dict dict;
};

struct RangeObject : Object {
  int64_t start, stop, step;
  int64_t size() const;
  int64_t at(int64_t index) const { return start + index * step; }
};

struct Namespace {
  Dict attributes;
};

// Name of the type in Python's messages ("str", "dict" ...).
std::string type_name(const Value& value);
bool truthy(const Value& value);
// Items in iteration order; an iterator is used up by it. Throws Failure when not iterable.
ValueList iterate(const Value& value);
bool is_iterable(const Value& value);
// Python's len(), or nothing where it raises TypeError.
std::optional<int64_t> length_of(const Value& value);

}  // namespace braid::jinja

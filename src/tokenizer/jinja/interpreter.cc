#include "tokenizer/jinja/interpreter.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/globals.h"
#include "tokenizer/jinja/lookup.h"
#include "tokenizer/jinja/loop.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/predicates.h"
#include "tokenizer/jinja/runtime.h"

namespace braid::jinja {

// Variables of one block; names not found here are looked for in the parent.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<Symbol, Value>> variables;
  bool kept = false;  // a macro refers to it, so it lives as long as the rendering

  const Value* find(Symbol symbol) const {
    for (const auto& [name, value] : variables) {
      if (name == symbol) return &value;
    }
    return nullptr;
  }
  void set(Symbol symbol, Value value) {
    for (auto& [name, old] : variables) {
      if (name == symbol) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(symbol, std::move(value));
  }
};

struct Macro {
  const MacroDefinition* definition;
  Scope* closure;
};

namespace {

enum class Flow { kNext, kBreak, kContinue };

class Interpreter : public Runtime {
 public:
  Interpreter(const Program& program, const Dict& variables, const Limits& limits)
      : Runtime(limits), program_(program) {
    for (const std::string& name : program.symbols) {
      if (const Value* given = variables.find(name)) {
        context_.push_back(*given);
      } else {
        Value global = find_global(name);
        context_.push_back(global.is_undefined()
                               ? Value::undefined(fmt::format("'{}' is undefined", name))
                               : std::move(global));
      }
    }
  }

  std::string run() {
    std::string text;
    output_ = &text;
    try {
      execute_block(program_.body);
    } catch (const Failure& failure) {
      throw Error("{}:{}: {}", program_.origin, line_, failure.what());
    }
    return text;
  }

  Value call(const Value& callee, Arguments arguments) override {
    switch (callee.kind()) {
      case Kind::kFunction:
        budget.charge(32);
        return callee.object_as<FunctionObject>().body(*this, std::move(arguments));
      case Kind::kMacro:
        return call_macro(callee.as_macro(), std::move(arguments));
      case Kind::kLoop: {
        const auto& loop = callee.object_as<LoopObject>();
        if (!loop.recurse) {
          throw Failure("the loop is not recursive: mark it with the 'recursive' keyword");
        }
        const Bound bound = bind("loop", std::move(arguments), {"iterable"}, 1);
        return loop.recurse(bound[0]);
      }
      case Kind::kUndefined:
        throw Failure(callee.as_string());
      default:
        throw Failure("'{}' object is not callable", type_name(callee));
    }
  }

  Value make_namespace(Dict attributes) override {
    namespaces_.push_back(std::make_unique<Namespace>(Namespace{std::move(attributes)}));
    return Value::of_namespace(namespaces_.back().get());
  }

 private:
  // A new scope for as long as this lives.
  class ScopeGuard {
   public:
    ScopeGuard(Interpreter& interpreter, Scope* parent)
        : interpreter_(interpreter), outer_(interpreter.scope_), scope_(std::make_unique<Scope>()) {
      scope_->parent = parent;
      interpreter_.scope_ = scope_.get();
    }
    ~ScopeGuard() {
      interpreter_.scope_ = outer_;
      if (scope_->kept) interpreter_.kept_scopes_.push_back(std::move(scope_));
    }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;

    Scope& scope() { return *scope_; }

   private:
    Interpreter& interpreter_;
    Scope* outer_;
    std::unique_ptr<Scope> scope_;
  };

  // Sends output to a string of its own for as long as this lives.
  class Capture {
   public:
    explicit Capture(Interpreter& interpreter)
        : interpreter_(interpreter), outer_(interpreter.output_) {
      interpreter_.output_ = &text;
    }
    ~Capture() { interpreter_.output_ = outer_; }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;

    std::string text;

   private:
    Interpreter& interpreter_;
    std::string* outer_;
  };

  void write(std::string_view text) {
    if (text.size() > budget.limits().output_bytes - output_->size()) {
      throw Failure("the output is longer than {} bytes", budget.limits().output_bytes);
    }
    budget.charge(text.size());
    output_->append(text);
  }

  // Statements.

  Flow execute_block(const Block& block) {
    for (const StatementPtr& statement : block) {
      const Flow flow = execute(*statement);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Statement& statement) {
    const Budget::Level level(budget);
    budget.charge(16);
    line_ = statement.line;
    switch (statement.kind) {
      case StatementKind::kOutput: {
        const auto& output = static_cast<const OutputStatement&>(statement);
        if (!output.expression) {
          write(output.text);
          break;
        }
        const Value value = evaluate(*output.expression);
        if (value.is_string()) {
          write(value.as_string());
        } else {
          write(text(value));
        }
        break;
      }
      case StatementKind::kIf:
        return execute_if(static_cast<const IfStatement&>(statement));
      case StatementKind::kFor: {
        const auto& loop = static_cast<const ForStatement&>(statement);
        execute_for(loop, evaluate(*loop.iterable), 0);
        break;
      }
      case StatementKind::kSet: {
        const auto& set = static_cast<const SetStatement&>(statement);
        assign(set.target, evaluate(*set.value), *scope_);
        break;
      }
      case StatementKind::kSetBlock: {
        const auto& set = static_cast<const SetBlockStatement&>(statement);
        Value value = capture_block(set.body);
        if (set.filter) value = apply_filters(*set.filter, value);
        assign(set.target, std::move(value), *scope_);
        break;
      }
      case StatementKind::kMacro: {
        const auto& macro = static_cast<const MacroStatement&>(statement);
        scope_->set(macro.symbol, make_macro(macro.definition));
        break;
      }
      case StatementKind::kCallBlock: {
        const auto& block = static_cast<const CallBlockStatement&>(statement);
        const Value callee = evaluate(*block.call->callee);
        Arguments arguments = evaluate_arguments(block.call->arguments);
        arguments.keyword.emplace_back("caller", make_macro(block.caller));
        line_ = statement.line;
        write(text(call(callee, std::move(arguments))));
        break;
      }
      case StatementKind::kFilterBlock: {
        const auto& block = static_cast<const FilterBlockStatement&>(statement);
        write(text(apply_filters(*block.filter, capture_block(block.body))));
        break;
      }
      case StatementKind::kWith:
        return execute_with(static_cast<const WithStatement&>(statement));
      case StatementKind::kScope: {
        ScopeGuard guard(*this, scope_);
        return execute_block(static_cast<const ScopeStatement&>(statement).body);
      }
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  Flow execute_if(const IfStatement& statement) {
    for (const auto& [condition, body] : statement.branches) {
      if (truthy(evaluate(*condition))) return execute_block(body);
    }
    return execute_block(statement.otherwise);
  }

  Flow execute_with(const WithStatement& statement) {
    ValueList values;
    for (const auto& item : statement.assignments) values.push_back(evaluate(*item.second));
    ScopeGuard guard(*this, scope_);
    for (size_t i = 0; i < values.size(); ++i) {
      assign(statement.assignments[i].first, std::move(values[i]), guard.scope());
    }
    return execute_block(statement.body);
  }

  void execute_for(const ForStatement& statement, const Value& iterable, int64_t depth) {
    line_ = statement.line;
    budget.charge_values(static_cast<size_t>(length_of(iterable).value_or(0)) + 1);
    auto loop = std::make_shared<LoopObject>();
    loop->items = loop_items(statement, iterate(iterable));
    loop->depth0 = depth;
    int deepest = 0;
    for (const Value& item : loop->items) deepest = std::max(deepest, item.depth());
    loop->depth = container_depth(deepest);
    if (loop->items.empty()) {
      ScopeGuard guard(*this, scope_);
      execute_block(statement.otherwise);
      return;
    }
    Scope* const outside = scope_;
    if (statement.recursive) {
      loop->recurse = [this, &statement, outside, depth](const Value& nested) {
        const Budget::Level level(budget);
        Capture capture(*this);
        ScopeGuard guard(*this, outside);
        execute_for(statement, nested, depth + 1);
        return new_string(std::move(capture.text));
      };
    }
    // What a loop holds on to must not hold the loop once it has ended.
    struct Release {
      LoopObject& loop;
      ~Release() {
        loop.recurse = nullptr;
        loop.last_changed.reset();
      }
    } release{*loop};
    const Value loop_value = Value::from_object(Kind::kLoop, loop);
    for (size_t i = 0; i < loop->items.size(); ++i) {
      loop->index0 = i;
      ScopeGuard guard(*this, outside);
      guard.scope().variables.reserve(4);
      guard.scope().set(program_.loop, loop_value);
      line_ = statement.line;
      assign(statement.target, loop->items[i], guard.scope());
      if (execute_block(statement.body) == Flow::kBreak) break;
    }
  }

  // The items that pass the condition of the for statement.
  ValueList loop_items(const ForStatement& statement, ValueList items) {
    if (!statement.condition) return items;
    ValueList kept;
    for (Value& item : items) {
      ScopeGuard guard(*this, scope_);
      assign(statement.target, item, guard.scope());
      if (truthy(evaluate(*statement.condition))) kept.push_back(std::move(item));
    }
    return kept;
  }

  Value capture_block(const Block& block) {
    Capture capture(*this);
    ScopeGuard guard(*this, scope_);
    execute_block(block);
    return new_string(std::move(capture.text));
  }

  Value apply_filters(const Expr& chain, const Value& input) {
    const Value* const outer = filter_input_;
    filter_input_ = &input;
    Value result = evaluate(chain);
    filter_input_ = outer;
    return result;
  }

  void assign(const Target& target, Value value, Scope& scope) {
    if (target.is_tuple) {
      const ValueList items = iterate(value);
      if (items.size() != target.unpack.size()) {
        throw Failure("cannot unpack {} values into {} names", items.size(), target.unpack.size());
      }
      for (size_t i = 0; i < items.size(); ++i) assign(target.unpack[i], items[i], scope);
      return;
    }
    if (target.attribute.empty()) {
      scope.set(target.symbol, std::move(value));
      return;
    }
    const Value& owner = variable(target.symbol);
    if (!owner.is(Kind::kNamespace)) {
      throw Failure(
          "cannot assign attribute '{}' on a {}: only namespaces have settable attributes",
          target.attribute, type_name(owner));
    }
    if (target.attribute.starts_with('_')) {
      throw Failure("a namespace cannot hold the underscore-prefixed attribute '{}'",
                    target.attribute);
    }
    owner.as_namespace().attributes.set(target.attribute, std::move(value));
  }

  // Macros.

  Value make_macro(const MacroDefinition& definition) {
    budget.charge(128);
    for (Scope* scope = scope_; scope != nullptr && !scope->kept; scope = scope->parent) {
      scope->kept = true;
    }
    macros_.push_back(std::make_unique<Macro>(Macro{&definition, scope_}));
    return Value::macro(macros_.back().get());
  }

  Value call_macro(const Macro& macro, Arguments arguments) {
    const Budget::Level level(budget);
    const MacroDefinition& definition = *macro.definition;
    const size_t count = definition.parameters.size();
    std::vector<std::optional<Value>> given(count);
    ValueList extra;
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
      if (i < count) {
        given[i] = std::move(arguments.positional[i]);
      } else {
        extra.push_back(std::move(arguments.positional[i]));
      }
    }
    if (!extra.empty() && !definition.uses_varargs) {
      throw Failure("macro '{}' takes not more than {} arguments", definition.name, count);
    }
    Dict keywords;
    Value caller = Value::undefined("No caller defined");
    for (auto& [name, value] : arguments.keyword) {
      const auto& names = definition.parameter_names;
      const auto place = std::find(names.begin(), names.end(), name);
      const auto index = static_cast<size_t>(place - names.begin());
      if (place != names.end()) {
        if (given[index]) {
          throw Failure("macro '{}' got multiple values for '{}'", definition.name, name);
        }
        given[index] = std::move(value);
      } else if (name == "caller" && definition.uses_caller) {
        caller = std::move(value);
      } else if (definition.uses_kwargs) {
        keywords.set(name, std::move(value));
      } else {
        throw Failure("macro '{}' takes no keyword argument '{}'", definition.name, name);
      }
    }

    Capture capture(*this);
    ScopeGuard guard(*this, macro.closure);
    Scope& scope = guard.scope();
    if (definition.uses_caller) scope.set(program_.caller, std::move(caller));
    if (definition.uses_kwargs) scope.set(program_.kwargs, Value::dict(std::move(keywords)));
    if (definition.uses_varargs) scope.set(program_.varargs, Value::tuple(std::move(extra)));
    const size_t first_default = count - definition.defaults.size();
    for (size_t i = 0; i < count; ++i) {
      if (given[i]) {
        scope.set(definition.parameters[i], *std::move(given[i]));
      } else if (i >= first_default) {
        scope.set(definition.parameters[i], evaluate(*definition.defaults[i - first_default]));
      } else {
        scope.set(definition.parameters[i],
                  Value::undefined(fmt::format("parameter '{}' was not provided",
                                               definition.parameter_names[i])));
      }
    }
    execute_block(definition.body);
    return new_string(std::move(capture.text));
  }

  // Expressions.

  const Value& variable(Symbol symbol) const {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      if (const Value* found = scope->find(symbol)) return *found;
    }
    return context_[static_cast<size_t>(symbol)];
  }

  ValueList evaluate_all(const ExprList& expressions) {
    ValueList values;
    values.reserve(expressions.size());
    for (const ExprPtr& expression : expressions) values.push_back(evaluate(*expression));
    budget.charge_values(values.size());
    return values;
  }

  Arguments evaluate_arguments(const CallArguments& arguments) {
    Arguments result;
    result.positional = evaluate_all(arguments.positional);
    for (const auto& [name, expression] : arguments.keyword) {
      result.keyword.emplace_back(name, evaluate(*expression));
    }
    if (arguments.star) {
      for (Value& item : iterate(evaluate(*arguments.star))) {
        result.positional.push_back(std::move(item));
      }
      budget.charge_values(result.positional.size());
    }
    if (arguments.star_star) {
      const Value mapping = evaluate(*arguments.star_star);
      if (!mapping.is_dict()) {
        throw Failure("argument after ** must be a mapping, not {}", type_name(mapping));
      }
      for (const auto& [name, value] : mapping.as_dict().entries()) {
        if (!name.is_string()) throw Failure("keywords must be strings");
        for (const auto& keyword : result.keyword) {
          if (keyword.first == name.as_string()) {
            throw Failure("got multiple values for keyword argument '{}'", keyword.first);
          }
        }
        result.keyword.emplace_back(name.as_string(), value);
      }
    }
    return result;
  }

  Value evaluate(const Expr& expression) {
    const Budget::Level level(budget);
    budget.charge(16);
    line_ = expression.line;
    switch (expression.kind) {
      case ExprKind::kConstant:
        return static_cast<const ConstantExpr&>(expression).value;
      case ExprKind::kName:
        return variable(static_cast<const NameExpr&>(expression).symbol);
      case ExprKind::kList:
        return Value::list(evaluate_all(static_cast<const SequenceExpr&>(expression).items));
      case ExprKind::kTuple:
        return Value::tuple(evaluate_all(static_cast<const SequenceExpr&>(expression).items));
      case ExprKind::kDict:
        return evaluate_dict(static_cast<const DictExpr&>(expression));
      case ExprKind::kAttribute: {
        const auto& attribute = static_cast<const AttributeExpr&>(expression);
        const Value object = evaluate(*attribute.object);
        line_ = expression.line;
        return get_attribute(object, attribute.name);
      }
      case ExprKind::kItem:
        return evaluate_item(static_cast<const ItemExpr&>(expression));
      case ExprKind::kSlice:
        break;  // handled by its item
      case ExprKind::kCall: {
        const auto& node = static_cast<const CallExpr&>(expression);
        const Value callee = evaluate(*node.callee);
        Arguments arguments = evaluate_arguments(node.arguments);
        line_ = expression.line;
        return call(callee, std::move(arguments));
      }
      case ExprKind::kFilter:
        return evaluate_filter(static_cast<const FilterExpr&>(expression));
      case ExprKind::kTest: {
        const auto& node = static_cast<const TestExpr&>(expression);
        const Value input = evaluate(*node.input);
        Arguments arguments = evaluate_arguments(node.arguments);
        line_ = expression.line;
        if (node.test == nullptr) throw Failure("unsupported test '{}'", node.name);
        return Value::boolean(node.test->test(*this, input, std::move(arguments)));
      }
      case ExprKind::kUnary: {
        const auto& node = static_cast<const UnaryExpr&>(expression);
        const Value operand = evaluate(*node.operand);
        line_ = expression.line;
        return apply_unary(node.op, operand);
      }
      case ExprKind::kNot:
        return Value::boolean(
            !truthy(evaluate(*static_cast<const UnaryExpr&>(expression).operand)));
      case ExprKind::kBinary: {
        const auto& node = static_cast<const BinaryExpr&>(expression);
        const Value left = evaluate(*node.left);
        const Value right = evaluate(*node.right);
        line_ = expression.line;
        return apply_binary(node.op, left, right, *this);
      }
      case ExprKind::kAnd:
      case ExprKind::kOr: {
        const auto& node = static_cast<const BinaryExpr&>(expression);
        Value left = evaluate(*node.left);
        if (truthy(left) == (expression.kind == ExprKind::kOr)) return left;
        return evaluate(*node.right);
      }
      case ExprKind::kConcat: {
        std::string joined;
        for (const Value& item : evaluate_all(static_cast<const SequenceExpr&>(expression).items)) {
          joined += text(item);
        }
        return new_string(std::move(joined));
      }
      case ExprKind::kCompare:
        return evaluate_compare(static_cast<const CompareExpr&>(expression));
      case ExprKind::kConditional: {
        const auto& node = static_cast<const ConditionalExpr&>(expression);
        if (truthy(evaluate(*node.condition))) return evaluate(*node.then);
        if (node.otherwise) return evaluate(*node.otherwise);
        return Value::undefined(
            fmt::format("the inline if-expression on line {} evaluated to false and no else "
                        "section was defined",
                        expression.line));
      }
    }
    BRAID_CHECK(false, "expression kind {}", static_cast<int>(expression.kind));
    return Value();
  }

  Value evaluate_dict(const DictExpr& expression) {
    Dict dict;
    for (const auto& [key, value] : expression.entries) {
      const Value name = evaluate(*key);
      dict.set(name, evaluate(*value));
    }
    budget.charge_values(dict.size() + 1);
    return Value::dict(std::move(dict));
  }

  Value evaluate_item(const ItemExpr& expression) {
    const Value object = evaluate(*expression.object);
    if (expression.key->kind != ExprKind::kSlice) {
      const Value key = evaluate(*expression.key);
      line_ = expression.line;
      return get_item(object, key, budget);
    }
    const auto& slice = static_cast<const SliceExpr&>(*expression.key);
    const auto bound = [this](const ExprPtr& part) {
      return part ? evaluate(*part) : Value::none();
    };
    const Value start = bound(slice.start);
    const Value stop = bound(slice.stop);
    const Value step = bound(slice.step);
    line_ = expression.line;
    return get_slice(object, start, stop, step, budget);
  }

  Value evaluate_filter(const FilterExpr& expression) {
    const Value input = expression.input ? evaluate(*expression.input) : *filter_input_;
    Arguments arguments = evaluate_arguments(expression.arguments);
    line_ = expression.line;
    if (expression.filter == nullptr) throw Failure("unsupported filter '{}'", expression.name);
    return expression.filter->apply(*this, input, std::move(arguments));
  }

  Value evaluate_compare(const CompareExpr& expression) {
    Value left = evaluate(*expression.first);
    for (const auto& [op, operand] : expression.rest) {
      Value right = evaluate(*operand);
      line_ = expression.line;
      if (!compare(op, left, right, *this)) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  const Program& program_;
  ValueList context_;  // by symbol: the given variables and the global functions
  Scope root_;
  Scope* scope_ = &root_;
  std::string* output_ = nullptr;
  const Value* filter_input_ = nullptr;
  int line_ = 1;
  std::vector<std::unique_ptr<Scope>> kept_scopes_;
  std::vector<std::unique_ptr<Macro>> macros_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
};

}  // namespace

std::string render(const Program& program, const Dict& variables, const Limits& limits) {
  return Interpreter(program, variables, limits).run();
}

}  // namespace braid::jinja

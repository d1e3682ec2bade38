#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace braid::jinja {

using Symbol = int;  // index into Program::symbols

enum class ExprKind : uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kUnary,
  kBinary,
  kConcat,
  kAnd,
  kOr,
  kNot,
  kCompare,
  kConditional,
};

struct Expr {
  Expr(ExprKind which, int at) : kind(which), line(at) {}
  virtual ~Expr() = default;
  ExprKind kind;
  int line;
  int depth = 1;  // nodes from here to the deepest leaf
};
using ExprPtr = std::unique_ptr<Expr>;
using ExprList = std::vector<ExprPtr>;

struct ConstantExpr : Expr {
  ConstantExpr(int at, Value constant)
      : Expr(ExprKind::kConstant, at), value(std::move(constant)) {}
  Value value;
};

struct NameExpr : Expr {
  NameExpr(int at, Symbol which) : Expr(ExprKind::kName, at), symbol(which) {}
  Symbol symbol;
};

struct SequenceExpr : Expr {  // kList, kTuple, kConcat
  using Expr::Expr;
  ExprList items;
};

struct DictExpr : Expr {
  explicit DictExpr(int at) : Expr(ExprKind::kDict, at) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};

struct AttributeExpr : Expr {
  explicit AttributeExpr(int at) : Expr(ExprKind::kAttribute, at) {}
  ExprPtr object;
  std::string name;
};

struct ItemExpr : Expr {
  explicit ItemExpr(int at) : Expr(ExprKind::kItem, at) {}
  ExprPtr object;
  ExprPtr key;
};

struct SliceExpr : Expr {  // the bounds inside [...]; only as the key of an ItemExpr
  explicit SliceExpr(int at) : Expr(ExprKind::kSlice, at) {}
  ExprPtr start, stop, step;  // may be null
};

struct CallArguments {
  ExprList positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star, star_star;  // may be null
};

struct CallExpr : Expr {
  explicit CallExpr(int at) : Expr(ExprKind::kCall, at) {}
  ExprPtr callee;
  CallArguments arguments;
};

struct Filter;     // filters.h
struct Predicate;  // predicates.h

struct FilterExpr : Expr {
  explicit FilterExpr(int at) : Expr(ExprKind::kFilter, at) {}
  ExprPtr input;  // null: the text of a filter block or block set
  std::string name;
  const Filter* filter = nullptr;  // null: unknown, an error once it is reached
  CallArguments arguments;
};

struct TestExpr : Expr {
  explicit TestExpr(int at) : Expr(ExprKind::kTest, at) {}
  ExprPtr input;
  std::string name;
  const Predicate* test = nullptr;  // null: unknown, an error once it is reached
  CallArguments arguments;
};

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kNegate,
  kPlus,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct UnaryExpr : Expr {  // kUnary, kNot
  using Expr::Expr;
  Operator op = Operator::kPlus;
  ExprPtr operand;
};

struct BinaryExpr : Expr {  // kBinary, kAnd, kOr
  using Expr::Expr;
  Operator op = Operator::kAdd;
  ExprPtr left, right;
};

struct CompareExpr : Expr {  // a < b <= c ...
  explicit CompareExpr(int at) : Expr(ExprKind::kCompare, at) {}
  ExprPtr first;
  std::vector<std::pair<Operator, ExprPtr>> rest;
};

struct ConditionalExpr : Expr {
  explicit ConditionalExpr(int at) : Expr(ExprKind::kConditional, at) {}
  ExprPtr condition, then, otherwise;  // otherwise may be null
};

// What set and for assign to: a name, an attribute of a namespace, or several of these.
struct Target {
  Symbol symbol = -1;
  std::string attribute;       // not empty: symbol.attribute
  std::vector<Target> unpack;  // not empty, or is_tuple: the items of a sequence
  bool is_tuple = false;
};

enum class StatementKind : uint8_t {
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,
  kBreak,
  kContinue,
};

struct Statement {
  Statement(StatementKind which, int at) : kind(which), line(at) {}
  virtual ~Statement() = default;
  StatementKind kind;
  int line;
};
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

struct OutputStatement : Statement {  // text, or the value of an expression
  explicit OutputStatement(int at) : Statement(StatementKind::kOutput, at) {}
  std::string text;
  ExprPtr expression;  // null: text
};

struct IfStatement : Statement {
  explicit IfStatement(int at) : Statement(StatementKind::kIf, at) {}
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block otherwise;
};

struct ForStatement : Statement {
  explicit ForStatement(int at) : Statement(StatementKind::kFor, at) {}
  Target target;
  ExprPtr iterable;
  ExprPtr condition;  // may be null
  bool recursive = false;
  Block body, otherwise;
};

struct SetStatement : Statement {
  explicit SetStatement(int at) : Statement(StatementKind::kSet, at) {}
  Target target;
  ExprPtr value;
};

struct SetBlockStatement : Statement {
  explicit SetBlockStatement(int at) : Statement(StatementKind::kSetBlock, at) {}
  Target target;
  ExprPtr filter;  // may be null
  Block body;
};

struct MacroDefinition {
  std::string name;
  std::vector<Symbol> parameters;
  std::vector<std::string> parameter_names;
  ExprList defaults;  // of the last parameters
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  Block body;
};

struct MacroStatement : Statement {
  explicit MacroStatement(int at) : Statement(StatementKind::kMacro, at) {}
  Symbol symbol = -1;
  MacroDefinition definition;
};

struct CallBlockStatement : Statement {
  explicit CallBlockStatement(int at) : Statement(StatementKind::kCallBlock, at) {}
  std::unique_ptr<CallExpr> call;
  MacroDefinition caller;
};

struct FilterBlockStatement : Statement {
  explicit FilterBlockStatement(int at) : Statement(StatementKind::kFilterBlock, at) {}
  ExprPtr filter;
  Block body;
};

struct WithStatement : Statement {
  explicit WithStatement(int at) : Statement(StatementKind::kWith, at) {}
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Block body;
};

struct ScopeStatement : Statement {  // {% generation %}: its text is kept, its variables are not
  explicit ScopeStatement(int at) : Statement(StatementKind::kScope, at) {}
  Block body;
};

// A parsed template; immutable.
struct Program {
  std::string origin;
  std::vector<std::string> symbols;
  Symbol caller = -1, varargs = -1, kwargs = -1, loop = -1;
  Block body;
};

}  // namespace braid::jinja

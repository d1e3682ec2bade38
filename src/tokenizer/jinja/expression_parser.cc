#include "tokenizer/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/predicates.h"

namespace braid::jinja {
namespace {

constexpr int kMaxExprDepth = 300;
constexpr int kMaxNesting = 200;

struct OperatorName {
  std::string_view text;
  Operator op;
};

constexpr OperatorName kComparisons[] = {
    {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
    {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
constexpr OperatorName kSums[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
constexpr OperatorName kProducts[] = {{"*", Operator::kMultiply},
                                      {"/", Operator::kDivide},
                                      {"//", Operator::kFloorDivide},
                                      {"%", Operator::kModulo}};

template <size_t n>
const Operator* find_operator(const OperatorName (&table)[n], const Token& token) {
  if (!token.is(TokenType::kOperator)) return nullptr;
  for (const OperatorName& entry : table) {
    if (entry.text == token.text) return &entry.op;
  }
  return nullptr;
}

template <typename Node>
std::unique_ptr<Node> make(ExprKind kind, int line) {
  return std::make_unique<Node>(kind, line);
}

}  // namespace

ExpressionParser::ExpressionParser(std::vector<Token> tokens, Program& program)
    : program_(program), tokens_(std::move(tokens)) {
  program_.caller = symbol("caller");
  program_.varargs = symbol("varargs");
  program_.kwargs = symbol("kwargs");
  program_.loop = symbol("loop");
}

ExpressionParser::Nesting::Nesting(ExpressionParser& parser, int line) : parser_(parser) {
  if (parser_.nesting_ >= kMaxNesting) {
    parser_.fail(line, fmt::format("unsupported nesting deeper than {} levels", kMaxNesting));
  }
  ++parser_.nesting_;
}

void ExpressionParser::fail(int line, const std::string& message) const {
  throw Error("{}:{}: {}", program_.origin, line, message);
}

const Token& ExpressionParser::look() const {
  return tokens_[std::min(position_ + 1, tokens_.size() - 1)];
}

Token ExpressionParser::next() {
  Token token = tokens_[position_];
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool ExpressionParser::skip_if_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  next();
  return true;
}

bool ExpressionParser::skip_if_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

std::string ExpressionParser::describe(const Token& token) const {
  switch (token.type) {
    case TokenType::kData:
      return "text";
    case TokenType::kVariableBegin:
      return "'{{'";
    case TokenType::kVariableEnd:
      return "'}}'";
    case TokenType::kBlockBegin:
      return "'{%'";
    case TokenType::kBlockEnd:
      return "'%}'";
    case TokenType::kEnd:
      return "the end of the template";
    case TokenType::kString:
      return fmt::format("string '{}'", token.text.substr(0, 40));
    default:
      return fmt::format("'{}'", token.text.substr(0, 40));
  }
}

void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_if_operator(op)) {
    fail(current().line, fmt::format("expected '{}', got {}", op, describe(current())));
  }
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_if_name(name)) {
    fail(current().line, fmt::format("expected '{}', got {}", name, describe(current())));
  }
}

Token ExpressionParser::expect(TokenType type, std::string_view what) {
  if (!current().is(type)) {
    fail(current().line, fmt::format("expected {}, got {}", what, describe(current())));
  }
  return next();
}

void ExpressionParser::note_unknown(int line, std::string_view what, const std::string& name) {
  std::string message = fmt::format("unsupported {} '{}'", what, name);
  if (what == "filter" && is_jinja2_filter(name)) fail(line, message);
  unknown_.emplace_back(line, std::move(message));
}

void ExpressionParser::refuse_unknown() const {
  if (!unknown_.empty()) fail(unknown_.front().first, unknown_.front().second);
}

Symbol ExpressionParser::symbol(const std::string& name) {
  const auto [place, added] =
      symbol_ids_.try_emplace(name, static_cast<Symbol>(program_.symbols.size()));
  if (added) program_.symbols.push_back(name);
  return place->second;
}

void ExpressionParser::cover(Expr& node, const Expr* child) const {
  if (child == nullptr) return;
  node.depth = std::max(node.depth, child->depth + 1);
  if (node.depth > kMaxExprDepth) {
    fail(node.line, fmt::format("unsupported expression: deeper than {} levels", kMaxExprDepth));
  }
}

void ExpressionParser::cover(Expr& node, const CallArguments& arguments) const {
  for (const ExprPtr& item : arguments.positional) cover(node, item.get());
  for (const auto& item : arguments.keyword) cover(node, item.second.get());
  cover(node, arguments.star.get());
  cover(node, arguments.star_star.get());
}

ExprPtr ExpressionParser::finish(ExprPtr node, std::initializer_list<const Expr*> children) const {
  for (const Expr* child : children) cover(*node, child);
  return node;
}

ExprPtr ExpressionParser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this, current().line);
  return with_conditional ? parse_conditional() : parse_or();
}

ExprPtr ExpressionParser::parse_conditional() {
  const int line = current().line;
  const size_t mark = unknown_.size();
  ExprPtr value = parse_or();
  while (skip_if_name("if")) {
    auto node = std::make_unique<ConditionalExpr>(line);
    node->then = std::move(value);
    node->condition = parse_or();
    if (skip_if_name("else")) node->otherwise = parse_expression();
    forgive_unknown(mark);
    const auto& n = *node;
    value = finish(std::move(node), {n.then.get(), n.condition.get(), n.otherwise.get()});
  }
  return value;
}

template <typename Left, typename Next>
ExprPtr ExpressionParser::binary_chain(Left parse_operand, Next next_operator) {
  const int line = current().line;
  ExprPtr left = parse_operand();
  while (const Operator* op = next_operator(current())) {
    next();
    auto node = make<BinaryExpr>(ExprKind::kBinary, line);
    node->op = *op;
    node->left = std::move(left);
    node->right = parse_operand();
    const auto& n = *node;
    left = finish(std::move(node), {n.left.get(), n.right.get()});
  }
  return left;
}

ExprPtr ExpressionParser::parse_or() {
  const int line = current().line;
  ExprPtr left = parse_and();
  while (skip_if_name("or")) {
    auto node = make<BinaryExpr>(ExprKind::kOr, line);
    node->left = std::move(left);
    node->right = parse_and();
    const auto& n = *node;
    left = finish(std::move(node), {n.left.get(), n.right.get()});
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  const int line = current().line;
  ExprPtr left = parse_not();
  while (skip_if_name("and")) {
    auto node = make<BinaryExpr>(ExprKind::kAnd, line);
    node->left = std::move(left);
    node->right = parse_not();
    const auto& n = *node;
    left = finish(std::move(node), {n.left.get(), n.right.get()});
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const int line = next().line;
  const Nesting nesting(*this, line);
  auto node = make<UnaryExpr>(ExprKind::kNot, line);
  node->operand = parse_not();
  const auto& n = *node;
  return finish(std::move(node), {n.operand.get()});
}

ExprPtr ExpressionParser::parse_compare() {
  const int line = current().line;
  ExprPtr first = parse_sum();
  std::vector<std::pair<Operator, ExprPtr>> rest;
  while (true) {
    if (const Operator* op = find_operator(kComparisons, current())) {
      next();
      rest.emplace_back(*op, parse_sum());
    } else if (skip_if_name("in")) {
      rest.emplace_back(Operator::kIn, parse_sum());
    } else if (current().is_name("not") && look().is_name("in")) {
      next();
      next();
      rest.emplace_back(Operator::kNotIn, parse_sum());
    } else {
      break;
    }
  }
  if (rest.empty()) return first;
  auto node = std::make_unique<CompareExpr>(line);
  node->first = std::move(first);
  node->rest = std::move(rest);
  cover(*node, node->first.get());
  for (const auto& item : node->rest) cover(*node, item.second.get());
  return node;
}

ExprPtr ExpressionParser::parse_sum() {
  return binary_chain([this] { return parse_concat(); },
                      [](const Token& token) { return find_operator(kSums, token); });
}

ExprPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  ExprPtr first = parse_product();
  if (!current().is_operator("~")) return first;
  auto node = make<SequenceExpr>(ExprKind::kConcat, line);
  node->items.push_back(std::move(first));
  while (skip_if_operator("~")) node->items.push_back(parse_product());
  for (const ExprPtr& item : node->items) cover(*node, item.get());
  return node;
}

ExprPtr ExpressionParser::parse_product() {
  return binary_chain([this] { return parse_power(); },
                      [](const Token& token) { return find_operator(kProducts, token); });
}

ExprPtr ExpressionParser::parse_power() {
  static constexpr OperatorName kPowers[] = {{"**", Operator::kPower}};
  return binary_chain([this] { return parse_unary(); },
                      [](const Token& token) { return find_operator(kPowers, token); });
}

ExprPtr ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this, current().line);
  ExprPtr node;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Token sign = next();
    auto unary = make<UnaryExpr>(ExprKind::kUnary, sign.line);
    unary->op = sign.text == "-" ? Operator::kNegate : Operator::kPlus;
    unary->operand = parse_unary(false);
    const auto& n = *unary;
    node = finish(std::move(unary), {n.operand.get()});
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::parse_name(const Token& token) {
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    return std::make_unique<ConstantExpr>(token.line,
                                          Value::boolean(name == "true" || name == "True"));
  }
  if (name == "none" || name == "None") {
    return std::make_unique<ConstantExpr>(token.line, Value::none());
  }
  for (MacroUse& use : macros_) {
    if (name == "caller") use.caller = true;
    if (name == "varargs") use.varargs = true;
    if (name == "kwargs") use.kwargs = true;
  }
  return std::make_unique<NameExpr>(token.line, symbol(name));
}

ExprPtr ExpressionParser::parse_number(const Token& token) const {
  const std::string& text = token.text;
  if (token.is(TokenType::kFloat)) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) {
      fail(token.line, fmt::format("unsupported number {}", text));
    }
    return std::make_unique<ConstantExpr>(token.line, Value::floating(value));
  }
  const bool prefixed = text.size() > 1 && text[0] == '0' && text[1] > '9';
  const char mark = prefixed ? static_cast<char>(text[1] | 0x20) : '\0';
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data() + (prefixed ? 2 : 0), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail(token.line, fmt::format("unsupported number {}: beyond 64 bits", text.substr(0, 40)));
  }
  return std::make_unique<ConstantExpr>(token.line, Value::integer(value));
}

ExprPtr ExpressionParser::parse_primary() {
  const Token token = next();
  switch (token.type) {
    case TokenType::kName:
      return parse_name(token);
    case TokenType::kString: {
      std::string text = token.text;
      while (current().is(TokenType::kString)) text += next().text;
      return std::make_unique<ConstantExpr>(token.line, Value::string(std::move(text)));
    }
    case TokenType::kInteger:
    case TokenType::kFloat:
      return parse_number(token);
    case TokenType::kOperator:
      if (token.text == "(") {
        ExprPtr node = parse_tuple(true, {}, true);
        expect_operator(")");
        return node;
      }
      if (token.text == "[") return parse_list();
      if (token.text == "{") return parse_dict();
      break;
    default:
      break;
  }
  fail(token.line, fmt::format("unexpected {}", describe(token)));
}

ExprPtr ExpressionParser::parse_list() {
  auto node = make<SequenceExpr>(ExprKind::kList, current().line);
  while (!current().is_operator("]")) {
    if (!node->items.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    node->items.push_back(parse_expression());
    cover(*node, node->items.back().get());
  }
  expect_operator("]");
  return node;
}

ExprPtr ExpressionParser::parse_dict() {
  auto node = std::make_unique<DictExpr>(current().line);
  while (!current().is_operator("}")) {
    if (!node->entries.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    ExprPtr key = parse_expression();
    expect_operator(":");
    ExprPtr value = parse_expression();
    cover(*node, key.get());
    cover(*node, value.get());
    node->entries.emplace_back(std::move(key), std::move(value));
  }
  expect_operator("}");
  return node;
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return current().is(TokenType::kVariableEnd) || current().is(TokenType::kBlockEnd) ||
         current().is_operator(")") || (!end_name.empty() && current().is_name(end_name));
}

ExprPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view end_name,
                                      bool parenthesised) {
  const int line = current().line;
  auto node = make<SequenceExpr>(ExprKind::kTuple, line);
  bool is_tuple = false;
  while (true) {
    if (!node->items.empty()) expect_operator(",");
    if (at_tuple_end(end_name)) break;
    node->items.push_back(parse_expression(with_conditional));
    cover(*node, node->items.back().get());
    if (!current().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!node->items.empty()) return std::move(node->items.front());
    if (!parenthesised) {
      fail(current().line, fmt::format("expected an expression, got {}", describe(current())));
    }
  }
  return node;
}

Symbol ExpressionParser::parse_target_name() {
  const Token token = expect(TokenType::kName, "a name");
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False" || name == "none" ||
      name == "None") {
    fail(token.line, fmt::format("cannot assign to '{}'", name));
  }
  return symbol(name);
}

Target ExpressionParser::parse_single_target(bool with_attribute) {
  const Nesting nesting(*this, current().line);
  if (skip_if_operator("(")) {
    Target target = parse_target(with_attribute);
    expect_operator(")");
    return target;
  }
  Target target;
  target.symbol = parse_target_name();
  if (with_attribute && skip_if_operator(".")) {
    target.attribute = expect(TokenType::kName, "an attribute name").text;
  }
  if (current().is_operator(".") || current().is_operator("[") || current().is_operator("(")) {
    fail(current().line, "unsupported assignment: only names and namespace attributes can be set");
  }
  return target;
}

Target ExpressionParser::parse_target(bool with_attribute, std::string_view end_name) {
  Target result;
  bool comma = false;
  while (true) {
    if (!result.unpack.empty()) expect_operator(",");
    if (at_tuple_end(end_name) || current().is_operator("=")) break;
    result.unpack.push_back(parse_single_target(with_attribute));
    if (!current().is_operator(",")) break;
    comma = true;
  }
  if (!comma) {
    if (result.unpack.empty()) {
      fail(current().line, fmt::format("expected a name, got {}", describe(current())));
    }
    Target only = std::move(result.unpack.front());
    return only;
  }
  result.is_tuple = true;
  return result;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr node) {
  while (true) {
    if (current().is_operator(".") || current().is_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object) {
  const Token token = next();
  if (token.text == ".") {
    const Token name = next();
    if (name.is(TokenType::kName)) {
      auto node = std::make_unique<AttributeExpr>(token.line);
      node->object = std::move(object);
      node->name = name.text;
      const auto& n = *node;
      return finish(std::move(node), {n.object.get()});
    }
    if (!name.is(TokenType::kInteger)) {
      fail(name.line, fmt::format("expected a name or number after '.', got {}", describe(name)));
    }
    auto node = std::make_unique<ItemExpr>(token.line);
    node->object = std::move(object);
    node->key = parse_number(name);
    const auto& n = *node;
    return finish(std::move(node), {n.object.get(), n.key.get()});
  }
  auto node = std::make_unique<ItemExpr>(token.line);
  node->object = std::move(object);
  auto keys = make<SequenceExpr>(ExprKind::kTuple, token.line);
  while (!current().is_operator("]")) {
    if (!keys->items.empty()) expect_operator(",");
    keys->items.push_back(parse_subscript_key());
    cover(*keys, keys->items.back().get());
  }
  expect_operator("]");
  if (keys->items.empty()) fail(token.line, "expected an expression between '[' and ']'");
  if (keys->items.size() == 1) {
    node->key = std::move(keys->items.front());
  } else {
    for (const ExprPtr& key : keys->items) {
      if (key->kind == ExprKind::kSlice) fail(token.line, "unsupported slice inside a tuple key");
    }
    node->key = std::move(keys);
  }
  const auto& n = *node;
  return finish(std::move(node), {n.object.get(), n.key.get()});
}

ExprPtr ExpressionParser::parse_subscript_key() {
  const int line = current().line;
  ExprPtr start;
  if (!current().is_operator(":")) {
    start = parse_expression();
    if (!current().is_operator(":")) return start;
  }
  next();
  auto node = std::make_unique<SliceExpr>(line);
  node->start = std::move(start);
  const auto ends = [this] {
    return current().is_operator("]") || current().is_operator(",") || current().is_operator(":");
  };
  if (!ends()) node->stop = parse_expression();
  if (skip_if_operator(":") && !ends()) node->step = parse_expression();
  const auto& n = *node;
  return finish(std::move(node), {n.start.get(), n.stop.get(), n.step.get()});
}

CallArguments ExpressionParser::parse_arguments() {
  CallArguments arguments;
  expect_operator("(");
  bool first = true;
  while (!current().is_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    first = false;
    const int line = current().line;
    const auto require = [&](bool valid) {
      if (!valid) fail(line, "invalid order of arguments in a call");
    };
    if (skip_if_operator("*")) {
      require(!arguments.star && !arguments.star_star);
      arguments.star = parse_expression();
    } else if (skip_if_operator("**")) {
      require(!arguments.star_star);
      arguments.star_star = parse_expression();
    } else if (current().is(TokenType::kName) && look().is_operator("=")) {
      require(!arguments.star_star);
      std::string name = next().text;
      next();
      for (const auto& keyword : arguments.keyword) {
        if (keyword.first == name) fail(line, fmt::format("keyword argument {} repeated", name));
      }
      arguments.keyword.emplace_back(std::move(name), parse_expression());
    } else {
      require(!arguments.star && !arguments.star_star && arguments.keyword.empty());
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return arguments;
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  auto node = std::make_unique<CallExpr>(current().line);
  node->arguments = parse_arguments();
  node->callee = std::move(callee);
  cover(*node, node->callee.get());
  cover(*node, node->arguments);
  return node;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect(TokenType::kName, "a name").text;
  while (skip_if_operator(".")) {
    name += '.';
    name += expect(TokenType::kName, "a name").text;
  }
  return name;
}

ExprPtr ExpressionParser::parse_filters(ExprPtr node, bool first_without_pipe) {
  while (true) {
    if (first_without_pipe || current().is_operator("|")) {
      const int line = current().line;
      if (!first_without_pipe) next();
      first_without_pipe = false;
      auto filter = std::make_unique<FilterExpr>(line);
      filter->name = parse_dotted_name();
      filter->filter = find_filter(filter->name);
      if (filter->filter == nullptr) note_unknown(line, "filter", filter->name);
      if (current().is_operator("(")) filter->arguments = parse_arguments();
      filter->input = std::move(node);
      cover(*filter, filter->input.get());
      cover(*filter, filter->arguments);
      node = std::move(filter);
    } else if (node && current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (node && current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_test(ExprPtr input) {
  const int line = next().line;
  const bool negated = skip_if_name("not");
  auto test = std::make_unique<TestExpr>(line);
  test->name = parse_dotted_name();
  test->test = find_predicate(test->name);
  if (test->test == nullptr) note_unknown(line, "test", test->name);
  const Token& token = current();
  if (token.is_operator("(")) {
    test->arguments = parse_arguments();
  } else if ((token.is(TokenType::kName) || token.is(TokenType::kString) ||
              token.is(TokenType::kInteger) || token.is(TokenType::kFloat) ||
              token.is_operator("[") || token.is_operator("{")) &&
             !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
    if (token.is_name("is")) fail(token.line, "tests cannot be chained with 'is'");
    test->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  test->input = std::move(input);
  cover(*test, test->input.get());
  cover(*test, test->arguments);
  if (!negated) return test;
  auto node = make<UnaryExpr>(ExprKind::kNot, line);
  node->operand = std::move(test);
  const auto& n = *node;
  return finish(std::move(node), {n.operand.get()});
}

}  // namespace braid::jinja

#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/token.h"

namespace braid::jinja {

// The expression half of the parser; parser.cc adds the statements.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, Program& program);

 protected:
  [[noreturn]] void fail(int line, const std::string& message) const;
  const Token& current() const { return tokens_[position_]; }
  const Token& look() const;
  Token next();
  bool skip_if_operator(std::string_view op);
  bool skip_if_name(std::string_view name);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);
  Token expect(TokenType type, std::string_view what);
  std::string describe(const Token& token) const;

  Symbol symbol(const std::string& name);

  ExprPtr parse_expression(bool with_conditional = true);
  // A bare tuple or one expression. `end_name` also ends a tuple.
  ExprPtr parse_tuple(bool with_conditional = true, std::string_view end_name = {},
                      bool parenthesised = false);
  Target parse_target(bool with_attribute, std::string_view end_name = {});
  Symbol parse_target_name();
  ExprPtr parse_filters(ExprPtr input, bool first_without_pipe = false);
  ExprPtr parse_unary(bool with_filter = true);
  CallArguments parse_arguments();

  // Held while the parser is one construct deeper.
  class Nesting {
   public:
    Nesting(ExpressionParser& parser, int line);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  // As in jinja2, a filter or test that nobody knows is an error at once, but under an if only when
  // it is reached: templates ask for the extensions of their own runtime that way.
  size_t unknown_mark() const { return unknown_.size(); }
  void forgive_unknown(size_t mark) { unknown_.resize(std::min(mark, unknown_.size())); }
  void refuse_unknown() const;

  // Which special names the macros around the current place use.
  struct MacroUse {
    bool caller = false, varargs = false, kwargs = false;
  };
  std::vector<MacroUse> macros_;
  Program& program_;

 private:
  ExprPtr parse_conditional();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_number(const Token& token) const;
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_subscript_key();
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_test(ExprPtr node);
  ExprPtr parse_name(const Token& token);
  std::string parse_dotted_name();
  bool at_tuple_end(std::string_view end_name) const;
  Target parse_single_target(bool with_attribute);

  template <typename Left, typename Next>
  ExprPtr binary_chain(Left left, Next next_operator);

  // Sets the depth of a node from its children and refuses one that is too deep to evaluate.
  ExprPtr finish(ExprPtr node, std::initializer_list<const Expr*> children) const;
  void cover(Expr& node, const Expr* child) const;
  void cover(Expr& node, const CallArguments& arguments) const;

  void note_unknown(int line, std::string_view what, const std::string& name);

  std::vector<std::pair<int, std::string>> unknown_;  // line, message
  std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
  std::unordered_map<std::string, Symbol> symbol_ids_;
};

}  // namespace braid::jinja

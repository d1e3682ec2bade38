#include "tokenizer/jinja/parser.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "tokenizer/jinja/expression_parser.h"
#include "tokenizer/jinja/lexer.h"

namespace braid::jinja {
namespace {

class Parser : ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, Program& program)
      : ExpressionParser(std::move(tokens), program) {}

  void run() {
    program_.body = parse_block({});
    refuse_unknown();
  }

 private:
  using Names = std::vector<std::string_view>;

  // Statements up to a tag named in `ends`, which is left with its name as the current token; up to
  // the end of the template when `ends` is empty.
  Block parse_block(const Names& ends) {
    const Nesting nesting(*this, current().line);
    Block block;
    while (!current().is(TokenType::kEnd)) {
      const Token token = next();
      if (token.is(TokenType::kData)) {
        auto node = std::make_unique<OutputStatement>(token.line);
        node->text = token.text;
        block.push_back(std::move(node));
      } else if (token.is(TokenType::kVariableBegin)) {
        block.push_back(parse_output(token.line));
        expect(TokenType::kVariableEnd, "'}}'");
      } else {
        for (std::string_view end : ends) {
          if (current().is_name(end)) return block;
        }
        block.push_back(parse_statement());
        expect(TokenType::kBlockEnd, "'%}'");
      }
    }
    if (!ends.empty()) {
      fail(current().line, fmt::format("the template ends where '{}' is expected", ends.front()));
    }
    return block;
  }

  // The body of a tag: from its closing delimiter to one of `ends`.
  Block parse_body(const Names& ends) {
    expect(TokenType::kBlockEnd, "'%}'");
    return parse_block(ends);
  }

  StatementPtr parse_statement() {
    const Token tag = expect(TokenType::kName, "the name of a tag");
    const std::string& name = tag.text;
    if (name == "if") return parse_if(tag.line);
    if (name == "for") return parse_for(tag.line);
    if (name == "set") return parse_set(tag.line);
    if (name == "macro") return parse_macro(tag.line);
    if (name == "call") return parse_call_block(tag.line);
    if (name == "filter") return parse_filter_block(tag.line);
    if (name == "with") return parse_with(tag.line);
    if (name == "generation") return parse_generation(tag.line);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(tag.line, fmt::format("'{}' outside a for loop", name));
      return std::make_unique<Statement>(
          name == "break" ? StatementKind::kBreak : StatementKind::kContinue, tag.line);
    }
    static constexpr std::array<std::string_view, 10> kKnown = {
        "print", "block",      "extends", "include", "import",
        "from",  "autoescape", "do",      "trans",   "debug"};
    for (std::string_view known : kKnown) {
      if (name == known) fail(tag.line, fmt::format("unsupported tag '{}'", name));
    }
    fail(tag.line, fmt::format("unsupported or misplaced tag '{}'", name));
  }

  StatementPtr parse_if(int line) {
    auto node = std::make_unique<IfStatement>(line);
    const size_t mark = unknown_mark();
    while (true) {
      ExprPtr condition = parse_tuple(false);
      Block body = parse_body({"endif", "elif", "else"});
      node->branches.emplace_back(std::move(condition), std::move(body));
      if (!skip_if_name("elif")) break;
    }
    if (skip_if_name("else")) node->otherwise = parse_body({"endif"});
    expect_name("endif");
    forgive_unknown(mark);
    return node;
  }

  StatementPtr parse_for(int line) {
    auto node = std::make_unique<ForStatement>(line);
    node->target = parse_target(false, "in");
    expect_name("in");
    node->iterable = parse_tuple(false, "recursive");
    if (skip_if_name("if")) node->condition = parse_expression();
    node->recursive = skip_if_name("recursive");
    ++loops_;
    node->body = parse_body({"endfor", "else"});
    --loops_;
    if (skip_if_name("else")) node->otherwise = parse_body({"endfor"});
    expect_name("endfor");
    return node;
  }

  StatementPtr parse_set(int line) {
    Target target = parse_target(true);
    if (skip_if_operator("=")) {
      auto node = std::make_unique<SetStatement>(line);
      node->target = std::move(target);
      node->value = parse_tuple();
      return node;
    }
    auto node = std::make_unique<SetBlockStatement>(line);
    node->target = std::move(target);
    node->filter = parse_filters(nullptr);
    node->body = parse_outside_loops({"endset"});
    expect_name("endset");
    return node;
  }

  // Bodies that become functions of their own in jinja2: no break or continue across them.
  Block parse_outside_loops(const Names& ends) {
    const int loops = std::exchange(loops_, 0);
    Block body = parse_body(ends);
    loops_ = loops;
    return body;
  }

  void parse_signature(MacroDefinition& definition) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      if (!definition.parameters.empty()) expect_operator(",");
      const int line = current().line;
      const Symbol parameter = parse_target_name();
      definition.parameters.push_back(parameter);
      definition.parameter_names.push_back(program_.symbols[static_cast<size_t>(parameter)]);
      if (skip_if_operator("=")) {
        definition.defaults.push_back(parse_expression());
      } else if (!definition.defaults.empty()) {
        fail(line, "a parameter without default follows one with a default");
      }
    }
    expect_operator(")");
  }

  void parse_macro_body(MacroDefinition& definition, std::string_view end) {
    definition.body = parse_outside_loops({end});
    expect_name(end);
    definition.uses_caller = macros_.back().caller;
    definition.uses_varargs = macros_.back().varargs;
    definition.uses_kwargs = macros_.back().kwargs;
    macros_.pop_back();
  }

  StatementPtr parse_macro(int line) {
    auto node = std::make_unique<MacroStatement>(line);
    node->symbol = parse_target_name();
    node->definition.name = program_.symbols[static_cast<size_t>(node->symbol)];
    macros_.emplace_back();
    parse_signature(node->definition);
    parse_macro_body(node->definition, "endmacro");
    return node;
  }

  StatementPtr parse_call_block(int line) {
    auto node = std::make_unique<CallBlockStatement>(line);
    node->caller.name = "caller";
    macros_.emplace_back();
    if (current().is_operator("(")) parse_signature(node->caller);
    ExprPtr call = parse_expression();
    if (call->kind != ExprKind::kCall) fail(line, "expected a call after 'call'");
    node->call.reset(static_cast<CallExpr*>(call.release()));
    parse_macro_body(node->caller, "endcall");
    return node;
  }

  StatementPtr parse_filter_block(int line) {
    auto node = std::make_unique<FilterBlockStatement>(line);
    node->filter = parse_filters(nullptr, true);
    node->body = parse_outside_loops({"endfilter"});
    expect_name("endfilter");
    return node;
  }

  StatementPtr parse_with(int line) {
    auto node = std::make_unique<WithStatement>(line);
    while (!current().is(TokenType::kBlockEnd)) {
      if (!node->assignments.empty()) expect_operator(",");
      Target target = parse_target(false);
      expect_operator("=");
      node->assignments.emplace_back(std::move(target), parse_expression());
    }
    node->body = parse_body({"endwith"});
    expect_name("endwith");
    return node;
  }

  StatementPtr parse_output(int line) {
    auto node = std::make_unique<OutputStatement>(line);
    node->expression = parse_tuple();
    return node;
  }

  StatementPtr parse_generation(int line) {
    auto node = std::make_unique<ScopeStatement>(line);
    node->body = parse_outside_loops({"endgeneration"});
    expect_name("endgeneration");
    return node;
  }

  int loops_ = 0;  // for loops around the current place, inside the innermost macro
};

}  // namespace

std::shared_ptr<const Program> parse_template(std::string_view source, const std::string& origin) {
  auto program = std::make_shared<Program>();
  program->origin = origin;
  Parser(tokenize_template(source, origin), *program).run();
  return program;
}

}  // namespace braid::jinja

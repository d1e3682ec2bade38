#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid::jinja {

enum class TokenType : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,   // text is the literal with its escapes resolved
  kInteger,  // text is the literal
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;
  int line = 1;

  bool is(TokenType wanted) const { return type == wanted; }
  bool is_name(std::string_view name) const { return type == TokenType::kName && text == name; }
  bool is_operator(std::string_view op) const { return type == TokenType::kOperator && text == op; }
};

}  // namespace braid::jinja

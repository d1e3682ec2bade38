#pragma once

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

// Python's operators. Integers have 64 bits; a result beyond them is a Failure.
Value apply_binary(Operator op, const Value& left, const Value& right, Runtime& runtime);
Value apply_unary(Operator op, const Value& operand);
bool compare(Operator op, const Value& left, const Value& right, Runtime& runtime);

bool equal(const Value& left, const Value& right, Budget& budget);
bool less(const Value& left, const Value& right, Budget& budget);
bool contains(const Value& container, const Value& item, Budget& budget);

// Charges for looking for `needle` in `text`.
void charge_search(Budget& budget, std::string_view text, std::string_view needle);

}  // namespace braid::jinja

#pragma once

#include <span>
#include <string_view>

#include "tokenizer/jinja/runtime.h"
#include "tokenizer/jinja/value.h"

namespace braid::jinja {

struct Filter {
  std::string_view name;
  Value (*apply)(Runtime& runtime, const Value& input, Arguments arguments);
};

// The filter of that name, or null.
const Filter* find_filter(std::string_view name);
// True for jinja2's own filters, whether or not they are here.
bool is_jinja2_filter(std::string_view name);

// Filters by group; each group is a file.
std::span<const Filter> text_filters();
std::span<const Filter> number_filters();
std::span<const Filter> sequence_filters();

}  // namespace braid::jinja

// Templates are read from model files: whatever they hold, the outcome is a text or a braid::Error.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/json.h"
#include "tokenizer/jinja/parser.h"

namespace {

constexpr std::string_view kVariables = R"({
  "bos_token": "<bos>", "add_generation_prompt": true, "n": 3, "f": 0.5, "none": null,
  "messages": [{"role": "system", "content": " S\u00e9 "}, {"role": "user", "content": "Hi <b>"},
    {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [{"id": "1",
      "function": {"name": "f", "arguments": {"a": [1, 2.5, null, {"b": true}], "items": "x"}}}]},
    {"role": "tool", "content": "\u65e5\u672c", "tool_call_id": "1"}],
  "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters":
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}},
     "required": ["a"]}}}]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const braid::jinja::Value variables = braid::jinja::parse_json(kVariables);
  const braid::jinja::Limits limits{.output_bytes = 1 << 16, .work = 1 << 20, .depth = 400};
  try {
    const std::string_view source(reinterpret_cast<const char*>(data), size);
    const auto program = braid::jinja::parse_template(source, "fuzz");
    braid::jinja::render(*program, variables.as_dict(), limits);
  } catch (const braid::Error&) {
  }
  return 0;
}

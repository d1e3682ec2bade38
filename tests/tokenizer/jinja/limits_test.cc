#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/json.h"
#include "tokenizer/jinja/parser.h"

namespace braid::jinja {
namespace {

using testing::HasSubstr;

constexpr Limits kSmall{.output_bytes = 1 << 16, .work = 1 << 22, .depth = 300};

std::string run(const std::string& source, const Limits& limits = kSmall) {
  try {
    return render(*parse_template(source, "t"), Dict(), limits);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(JinjaLimits, LoopsStop) {
  EXPECT_THAT(
      run("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
      HasSubstr("units of work"));
}

TEST(JinjaLimits, DoublingStringsStop) {
  EXPECT_THAT(run("{% set n = namespace(s='ab') %}{% for i in range(99) %}"
                  "{% set n.s = n.s + n.s %}{% endfor %}"),
              HasSubstr("units of work"));
  EXPECT_THAT(run("{{ 'x' * 9000000000000000000 }}"), HasSubstr("units of work"));
  EXPECT_THAT(run("{{ [1] * 9000000000000000000 }}"), HasSubstr("units of work"));
  EXPECT_THAT(run("{{ 'a'.ljust(9000000000000000000) }}"), HasSubstr("units of work"));
  EXPECT_THAT(run("{{ ('a' * 99999).replace('a', 'b' * 99999) }}"), HasSubstr("units of work"));
  EXPECT_THAT(run("{{ [1] | tojson(indent=9000000000000000000) }}"), HasSubstr("units of work"));
}

TEST(JinjaLimits, OutputStops) {
  EXPECT_THAT(run("{% for i in range(1000) %}{{ 'x' * 1000 }}{% endfor %}"),
              HasSubstr("output is longer"));
}

TEST(JinjaLimits, RecursionStops) {
  EXPECT_THAT(run("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("deeper than"));
  EXPECT_THAT(run("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
              HasSubstr("deeper than"));
  EXPECT_THAT(run("{% set n = namespace() %}{% set n.n = n %}{{ n }}"), HasSubstr("deeper than"));
}

TEST(JinjaLimits, NestingOfValuesStops) {
  EXPECT_THAT(run("{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}"
                  "{% endfor %}"),
              HasSubstr("nested deeper"));
  EXPECT_THAT(run("{% set n = namespace(x=[]) %}{% for i in range(999) %}"
                  "{% set n.x = [n.x.index] %}{% endfor %}"),
              HasSubstr("nested deeper"));
  EXPECT_THROW(parse_json(std::string(100000, '[')), Failure);
}

TEST(JinjaLimits, FullDepthFitsTheStack) {
  const Limits limits;
  EXPECT_THAT(run("{% macro m() %}{% if true %}{% for i in [1] %}{{ m() | trim }}{% endfor %}"
                  "{% endif %}{% endmacro %}{{ m() }}",
                  limits),
              HasSubstr("deeper than"));
}

TEST(JinjaLimits, MacrosOutliveTheirScope) {
  EXPECT_EQ(run("{% set n = namespace() %}{% for i in [7] %}{% set j = i %}{% macro m() %}{{ j }}"
                "{% endmacro %}{% set n.m = m %}{% endfor %}{{ n.m() }}"),
            "7");
}

TEST(JinjaLimits, LoopsMayBeKept) {
  EXPECT_EQ(run("{% set n = namespace() %}{% for i in [7, 8] %}{% set n.l = loop %}"
                "{% set c = loop.changed(loop) %}{% endfor %}{{ n.l.index }}"),
            "2");
}

}  // namespace
}  // namespace braid::jinja

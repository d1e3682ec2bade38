#include "benchmark/result.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "benchmark/compare.h"
#include "benchmark/html_report.h"

namespace braid {
namespace {

BenchRow row(const std::string& test, std::vector<double> seconds) {
  BenchRow row;
  row.test = test;
  row.phase = "decode";
  row.tokens = 100;
  row.threads = 2;
  row.seconds = std::move(seconds);
  row.work.weight_bytes = 30;
  row.work.operations = {0, 0, 40};
  row.ops = {{"linear", "q4_0", "mlp", row.work}};
  return row;
}

BenchResult sample() {
  BenchResult result;
  result.environment = {.cpu = "a <cpu> & \"more\"", .isa = "avx2", .processors = 2};
  result.model = "m";
  result.family = "gemma4";
  result.weights = "dummy q4_0";
  result.compute = "auto";
  result.ceilings = {{2, 10, {1, 2, 20}}};
  result.rows = {row("tg64", {4, 6, 5}), row("pp512", {1, 2})};
  return result;
}

TEST(BenchResult, MedianRateSpreadAndShare) {
  const BenchResult result = sample();
  const BenchRow& tg = result.rows[0];
  EXPECT_DOUBLE_EQ(tg.median_seconds(), 5);
  EXPECT_DOUBLE_EQ(tg.rate(), 20);
  EXPECT_DOUBLE_EQ(tg.min_rate(), 100.0 / 6);
  EXPECT_DOUBLE_EQ(tg.spread(), 2.0 / 5);
  EXPECT_DOUBLE_EQ(result.rows[1].median_seconds(), 1.5);
  const RowBound bound = bound_of(tg, result);  // 3 s of reading against 2 s of products
  EXPECT_EQ(bound.what, "memory");
  EXPECT_DOUBLE_EQ(bound.share, 3.0 / 5);
  BenchRow other = tg;
  other.threads = 1;
  EXPECT_EQ(bound_of(other, result).what, "unknown");
}

TEST(BenchResult, JsonHoldsEverything) {
  const BenchResult before = sample();
  const std::string text = to_json(before);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["bound"], "memory");
  EXPECT_DOUBLE_EQ(json["rows"][0]["share"], 0.6);
  const BenchResult after = bench_result_from_json(text, "a.json");
  EXPECT_EQ(to_json(after), text);
}

TEST(BenchResult, BadFilesAreRefusedByName) {
  const auto refused = [](const std::string& text, const std::string& says) {
    try {
      bench_result_from_json(text, "a.json");
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("a.json"), std::string::npos) << message;
      EXPECT_NE(message.find(says), std::string::npos) << message;
    }
  };
  refused("", "not JSON");
  refused("{\"kind\": \"other\"}", "not a result");
  refused("[]", "not a result");
  const auto changed = [](const char* path, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(to_json(sample()));
    json[nlohmann::json::json_pointer(path)] = value;
    return json.dump();
  };
  refused(changed("/version", 99), "version 99");
  refused(changed("/rows", 3), "'rows'");
  refused(changed("/rows/1/seconds", nlohmann::json::array()), "rows[1]");
  refused(changed("/rows/0/seconds/0", -1), "'seconds'");
  refused(changed("/rows/0/batch", -1), "'batch'");
  refused(changed("/rows/0/work", "x"), "work");
  refused(changed("/rows/0/ops/0/calls", 1.5), "'calls'");
}

TEST(BenchComparison, TheLargestLossComesFirst) {
  const BenchResult before = sample();
  BenchResult after = sample();
  after.rows[0].seconds = {10, 10, 10};  // half the speed
  after.rows[1].seconds = {0.75};        // twice
  after.rows.push_back(row("tg128", {1}));
  BenchComparison comparison = compare(before, after);
  ASSERT_EQ(comparison.rows.size(), 2u);
  EXPECT_EQ(comparison.rows[0].key, "tg64 b1 t2 d0");
  EXPECT_DOUBLE_EQ(comparison.rows[0].ratio(), 0.5);
  EXPECT_DOUBLE_EQ(comparison.rows[0].noise, 0.4);
  EXPECT_DOUBLE_EQ(comparison.rows[1].ratio(), 2);
  EXPECT_TRUE(comparison.only_before.empty());
  EXPECT_EQ(comparison.only_after, std::vector<std::string>{"tg128 b1 t2 d0"});
  EXPECT_EQ(comparison.slower(0.1).size(), 1u);
  EXPECT_EQ(comparison.slower(0.49).size(), 1u);
  EXPECT_EQ(comparison.slower(0.51).size(), 0u);
  comparison = compare(after, before);
  EXPECT_EQ(comparison.rows[0].key, "pp512 b1 t2 d0");
  EXPECT_EQ(comparison.only_before.size(), 1u);
}

TEST(HtmlReport, EscapesAndStandsAlone) {
  const std::string page = to_html(sample());
  EXPECT_NE(page.find("a &lt;cpu&gt; &amp; &quot;more&quot;"), std::string::npos);
  EXPECT_EQ(page.find("<cpu>"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);
  EXPECT_NE(page.find("tg64 b1 t2 d0"), std::string::npos);
  EXPECT_NE(page.find("60 % of memory"), std::string::npos);
}

}  // namespace
}  // namespace braid

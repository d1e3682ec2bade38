#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "evaluate/eval_report.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

EvalReport example() {
  EvalReport report{.model = "a<b", .reference = "r&r", .facts = {{"date", "today"}}};
  NllResult nll{.has_reference = true, .num_documents = 1, .num_tokens = 300};
  nll.buckets.push_back({.length = 128,
                         .num_chunks = 1,
                         .num_documents = 1,
                         .num_tokens = 127,
                         .nll = {2.5, std::numeric_limits<double>::quiet_NaN(), 1},
                         .perplexity = 12.18,
                         .reference_nll = {2.25, 0.5, 1},
                         .delta = {0.25, std::numeric_limits<double>::quiet_NaN(), 1}});
  nll.buckets.push_back({.length = 512, .num_left_out = 300});
  nll.position_bucket = 128;
  nll.positions.push_back({.begin = 1, .end = 3, .num_tokens = 2, .nll = 3, .reference_nll = 2});
  nll.kl_histogram.add(1e-3);
  report.nll = nll;
  WorstPlace place{.document = "text \x01", .context = "<i>", .target = "\"", .top = "&"};
  report.worst.push_back(place);
  TaskResult choices{.name = "quiz"};
  choices.choice_items = {{.id = "7", .choices = {"a", "b"}, .gold = 1}};
  choices.choices = ChoiceScore{.num_items = 1, .accuracy = 1};
  choices.choices->answers = {{.log_likelihoods = {-2, -1}, .by_sum = 1}};
  report.tasks.push_back(choices);
  TaskResult generation{.name = "words"};
  generation.generation_items = {{.id = "x"}};
  generation.generation = GenerationScore{.num_items = 1};
  generation.generation->answers = {{.text = "t"}};
  report.tasks.push_back(generation);
  report.layers = {{"layers.0.q", 0.01}, {"layers.0.k", 0.1}};
  return report;
}

TEST(EvalReport, JsonHoldsTheFiguresAndNullForUnknownOnes) {
  const nlohmann::ordered_json json = to_json(example());
  const auto& bucket = json["nll"]["buckets"][0];
  EXPECT_EQ(bucket["nll"]["mean"], 2.5);
  EXPECT_TRUE(bucket["nll"]["ci95_half_width"].is_null());
  EXPECT_EQ(bucket["reference_nll"]["ci95_half_width"], 0.5);
  EXPECT_EQ(bucket["delta_nll"]["mean"], 0.25);
  EXPECT_FALSE(json["nll"]["buckets"][1].contains("nll"));
  EXPECT_EQ(json["nll"]["buckets"][1]["tokens_left_out"], 300);
  EXPECT_EQ(json["nll"]["positions"][0]["reference_nll"], 2);
  EXPECT_EQ(json["tasks"][0]["answers"][0]["by_sum"], 1);
  EXPECT_TRUE(json["tasks"][1]["answers"][0]["extracted"].is_null());
  EXPECT_EQ(json["layers"][1]["error"], 0.1);
  EXPECT_EQ(json["facts"]["date"], "today");
  // Text that JSON cannot hold as it is.
  EXPECT_NO_THROW(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

TEST(EvalReport, PageHoldsTheFiguresAndNoMarkupOfTexts) {
  const std::string page = to_html(example());
  for (const char* text : {"a&lt;b", "r&amp;r", "2.5000", "0.2500", "&lt;i&gt;", "quiz", "words",
                           "Loss by position", "ΔNLL by length", "Error of each layer"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("<i>")));
  EXPECT_THAT(page, Not(HasSubstr("\x01")));
}

TEST(EvalReport, PageWithoutReferenceHasNoComparison) {
  EvalReport report = example();
  report.reference.clear();
  report.nll->has_reference = false;
  report.layers.clear();
  const std::string page = to_html(report);
  EXPECT_THAT(page, Not(HasSubstr("ΔNLL")));
  EXPECT_THAT(page, Not(HasSubstr("Error of each layer")));
  EXPECT_FALSE(to_json(report)["nll"].contains("worst"));
}

}  // namespace
}  // namespace braid

#include "ops/logits/draw_tokens.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "ops/logits/draw_math.h"
#include "ops/logits/row_drawer.h"
#include "ops/op_test.h"
#include "support/multinomial.h"
#include "tensor/cuda/stream_memory.h"
#include "tensor/step_tables.h"

namespace braid {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class DrawTokensTest : public OpTest {
 protected:
  // Of all kinds: many equals, few that count, values of no use.
  void fill_row(float* row, int64_t width) {
    const float deviation = random.pick({0.0f, 0.3f, 1.0f, 3.0f, 8.0f, 100.0f, 1e30f});
    const float offset = random.pick({0.0f, -20.0f, 15.0f, 1000.0f});
    const int64_t kind = random.integer(0, 5);
    for (int64_t i = 0; i < width; ++i) {
      float x = offset + random.normal(deviation);
      if (kind == 0) x = std::round(x);
      if (kind == 1 && random.integer(0, 9) < 8) x = -kInfinity;
      row[i] = x;
    }
    if (kind == 2) {
      for (const float x : {kNan, kInfinity, -kInfinity, -0.0f, 0.0f}) {
        row[random.integer(0, width - 1)] = x;
      }
    }
    if (kind == 3 && random.integer(0, 3) == 0) {
      std::fill_n(row, width, random.pick({-kInfinity, kNan, 1.5f, kInfinity, -3e38f}));
    }
  }

  DrawRule random_rule(int64_t row, int64_t width, std::vector<LogitEdit>& edits) {
    DrawRule rule{.row = row,
                  .temperature = random.pick({0.0f, 1e-38f, 0.1f, 0.7f, 1.0f, 1.3f, 5.0f, 1e30f})};
    if (random.integer(0, 1) == 0) {
      rule.top_k = static_cast<int32_t>(random.pick<int64_t>({1, 2, 20, 64, 1024, 5000, width}));
    }
    if (random.integer(0, 1) == 0) {
      rule.top_p = random.pick({1e-6f, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 0.9999999f});
    }
    if (random.integer(0, 2) == 0) rule.min_p = random.pick({1e-6f, 0.05f, 0.5f, 1.0f});
    if (random.integer(0, 1) == 0) {
      rule.num_logprobs = static_cast<int32_t>(random.pick<int64_t>({0, 1, 5, 20, 1000}));
    }
    rule.key = {.seed = random.engine()(),
                .request = random.engine()(),
                .position = static_cast<uint64_t>(random.integer(0, 1 << 20))};
    edits.clear();
    if (random.integer(0, 1) == 0) {
      rule.repetition_penalty = random.pick({1.0f, 1.3f, 0.5f});
      rule.presence_penalty = random.pick({0.0f, 0.6f, -2.0f});
      rule.frequency_penalty = random.pick({0.0f, 0.3f, -1.0f});
      const int64_t count = std::min<int64_t>(width, random.pick<int64_t>({1, 3, 300, 5000}));
      std::set<int64_t> tokens;
      while (static_cast<int64_t>(tokens.size()) < count && tokens.size() < 3000) {
        tokens.insert(random.integer(0, width - 1));
      }
      for (const int64_t token : tokens) {
        edits.push_back({.token = static_cast<int32_t>(token),
                         .output_count = static_cast<int32_t>(random.integer(-1, 3)),
                         .bias = random.pick({0.0f, 0.0f, 2.5f, -100.0f, -kInfinity})});
      }
      rule.edits = edits;
    }
    return rule;
  }
};

// The same token, log-probabilities and all, as one row at a time on the host gives.
TEST_P(DrawTokensTest, EqualsDrawingOnTheHostToTheBit) {
  // The widest does not fit the shared memory of a team's blocks.
  for (const int64_t width :
       {1, 3, 4, 17, 300, 2048, 5001, 16384, 20000, 70000, 151936, 262144, 270000}) {
    const bool wide = width > 10000;
    if (small_tests() && width > 300 && width != 5001 && width != 20000 && width != 270000)
      continue;
    const int64_t rows = small_tests() ? (wide ? 1 : 2) : wide ? 4 : 9;
    for (int round = 0; round < (small_tests() ? 1 : wide ? 3 : 8); ++round) {
      PaddedTensor logits({rows, width}, random.pick<int64_t>({0, 1, 4}));
      std::vector<std::vector<LogitEdit>> edits(rows);
      std::vector<DrawRule> rules;
      for (int64_t i = rows - 1; i >= 0; --i) {
        fill_row(logits.row(i), width);
        if (random.integer(0, 5) == 0) continue;
        rules.push_back(random_rule(i, width, edits[i]));
        // Masses take a great many more accesses, the same in every row.
        if (small_tests() && width > 20000) rules.back().top_p = 1, rules.back().min_p = 0;
      }
      if (rules.empty()) continue;
      int32_t most = 0;
      for (const DrawRule& rule : rules) most = std::max(most, rule.num_logprobs);
      const std::vector<uint32_t> before = logits.bits();
      Tensor drawn(DType::kI32, {static_cast<int64_t>(rules.size()), drawn_columns(most)}, device);
      const Workspace::Scope scope(workspace);
      draw_tokens(stream, workspace, logits, rules, drawn.view());
      EXPECT_EQ(logits.bits(), before) << "the rows have changed";
      RowDrawer drawer;
      DrawnToken token, expected;
      for (size_t i = 0; i < rules.size(); ++i) {
        const DrawRule& rule = rules[i];
        drawer.draw({logits.row(rule.row), static_cast<size_t>(width)}, rule, expected);
        read_drawn(drawn.view(), static_cast<int64_t>(i), token);
        const auto what = ::testing::Message()
                          << "width " << width << ", temperature " << rule.temperature << ", top_k "
                          << rule.top_k << ", top_p " << rule.top_p << ", min_p " << rule.min_p
                          << ", " << rule.edits.size() << " edits, logprobs " << rule.num_logprobs;
        ASSERT_EQ(token.token, expected.token) << what;
        ASSERT_EQ(bits_of(token.logprob), bits_of(expected.logprob)) << what;
        ASSERT_EQ(token.top.size(), expected.top.size()) << what;
        for (size_t j = 0; j < token.top.size(); ++j) {
          ASSERT_EQ(token.top[j].token, expected.top[j].token) << what << ", entry " << j;
          ASSERT_EQ(bits_of(token.top[j].logprob), bits_of(expected.top[j].logprob)) << what;
        }
      }
      EXPECT_TRUE(logits.gaps_untouched());
    }
  }
}

// Many draws of one row against the exact probabilities; out of bounds once in 10^11 runs.
TEST_P(DrawTokensTest, TokensComeAsOftenAsTheirProbabilities) {
  constexpr int64_t kWidth = 40, kDraws = 4000;
  PaddedTensor logits({1, kWidth}, 0);
  logits.fill_normal(random, 1.5f);
  const DrawRule base{.temperature = 0.8f, .top_k = 12, .key = {.seed = random.engine()()}};
  std::vector<std::pair<float, int64_t>> order;  // of equals, the lower id first
  for (int64_t i = 0; i < kWidth; ++i) order.push_back({-logits.row(0)[i], i});
  std::sort(order.begin(), order.end());
  std::vector<double> p(kWidth);
  double total = 0;
  for (int i = 0; i < base.top_k; ++i) {
    total += p[order[i].second] = std::exp((order[0].first - order[i].first) / 0.8);
  }
  std::vector<int64_t> counts(kWidth);
  Tensor drawn(DType::kI32, {1, drawn_columns(-1)}, device);
  for (int64_t i = 0; i < kDraws; ++i) {
    DrawRule rule = base;
    rule.key.position = static_cast<uint64_t>(i);
    const Workspace::Scope scope(workspace);
    draw_tokens(stream, workspace, logits, std::span(&rule, 1), drawn.view());
    ++counts[drawn.view().row<int32_t>(0)[0]];
  }
  std::vector<std::pair<double, int64_t>> cells;
  for (int64_t i = 0; i < kWidth; ++i) cells.push_back({p[i] / total, counts[i]});
  EXPECT_GT(testing::log_chance(cells), -25.3);
}

// Penalties over long texts: more edits than the tables of a step have room for.
TEST_P(DrawTokensTest, LongHistoriesOfManyRows) {
  // On the CPU nothing is sent anywhere.
  const int64_t width = small_tests() ? 20000 : 262144, rows = !on_cuda()      ? 2
                                                               : small_tests() ? 5
                                                                               : 64;
  const int64_t distinct = small_tests() ? 3000 : 100000;
  std::vector<float> values(static_cast<size_t>(width) + 1000);
  for (float& value : values) value = random.normal(3);
  PaddedTensor logits({rows, width}, 0);
  std::vector<int32_t> order(static_cast<size_t>(width));
  for (int32_t i = 0; i < width; ++i) order[static_cast<size_t>(i)] = i;
  std::shuffle(order.begin(), order.end(), random.engine());
  std::vector<std::vector<LogitEdit>> edits(static_cast<size_t>(rows));
  std::vector<DrawRule> rules;
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(values.begin() + random.integer(0, 1000), width, logits.row(i));
    const int64_t first = random.integer(0, width - distinct);
    for (int64_t e = 0; e < distinct; ++e) {
      edits[i].push_back({.token = order[static_cast<size_t>(first + e)],
                          .output_count = static_cast<int32_t>((e + i) % 5),
                          .bias = e % 1000 == 0 ? -1.5f : 0.0f});
    }
    rules.push_back({.row = i,
                     .temperature = random.pick({0.0f, 0.8f, 1.5f}),
                     .top_p = random.pick({0.9f, 1.0f}),
                     .repetition_penalty = 1.2f,
                     .presence_penalty = 0.4f,
                     .frequency_penalty = 0.2f,
                     .num_logprobs = 2,
                     .key = {.seed = random.engine()(), .position = 7},
                     .edits = edits[i]});
  }
  if (on_cuda() && !small_tests()) {
    EXPECT_GT(rows * distinct * static_cast<int64_t>(sizeof(LogitEdit)), cuda::kStreamTableBytes);
  }
  const std::vector<uint32_t> before = logits.bits();
  Tensor drawn(DType::kI32, {rows, drawn_columns(2)}, device);
  // One step after the other, as an engine has them: what is sent must outlive the one in front.
  for (int step = 0; step < (small_tests() ? 2 : 3); ++step) {
    for (DrawRule& rule : rules) rule.key.position += 1;
    const StepTables tables(stream);
    const Workspace::Scope scope(workspace);
    draw_tokens(stream, workspace, logits, rules, drawn.view());
    RowDrawer drawer;
    DrawnToken token, expected;
    for (int64_t i = 0; i < rows; i += step == 0 ? 1 : 9) {
      drawer.draw({logits.row(i), static_cast<size_t>(width)}, rules[i], expected);
      read_drawn(drawn.view(), i, token);
      ASSERT_EQ(token.token, expected.token) << "row " << i << ", step " << step;
      ASSERT_EQ(bits_of(token.logprob), bits_of(expected.logprob)) << "row " << i;
    }
  }
  EXPECT_EQ(logits.bits(), before) << "the rows have changed";
}

TEST(DrawMath, ExponentialsAndLogarithmsAreNearTheExactOnes) {
  Random random;
  SCOPED_TRACE(random.seed());
  for (int i = 0; i < 200000; ++i) {
    const float x = -random.uniform(0, 86);
    const double exact = std::exp(double{x});
    // Two roundings of the reduced argument (at most 0.35), the polynomial's own 6·10^-8.
    ASSERT_NEAR(exp_of_negative(x) / exact, 1, 4 * 0x1p-24) << x;
    const double y =
        std::ldexp(0.5 + 0.5 * random.uniform(0, 1), static_cast<int>(-random.integer(0, 40)));
    ASSERT_NEAR(log_of(y), std::log(y), 2 * 0x1p-52 * std::abs(std::log(y))) << y;
    ASSERT_NEAR(log_of(1 / y), -std::log(y), 4 * 0x1p-52 * std::abs(std::log(y)) + 0x1p-52) << y;
  }
  EXPECT_EQ(exp_of_negative(0), 1);
  EXPECT_EQ(exp_of_negative(-kInfinity), 0);
  EXPECT_EQ(log_of(1), 0);
}

BRAID_INSTANTIATE_PER_TARGET(DrawTokensTest);

}  // namespace
}  // namespace braid

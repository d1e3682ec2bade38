#include "ops/logits/spread_logits.h"

#include <algorithm>
#include <numeric>

#include "ops/logits/feed_tokens.h"
#include "ops/op_test.h"

namespace braid {
namespace {

class SpreadLogitsTest : public OpTest {
 protected:
  Tensor integers(const Shape& shape) { return Tensor(DType::kI32, shape, device); }
};

TEST_P(SpreadLogitsTest, ChosenGroupsInTheirPlacesTheSmallestLessOneElsewhere) {
  for (const auto [rows, k, num_groups, size] :
       {std::array<int64_t, 4>{1, 1, 1, 1}, std::array<int64_t, 4>{3, 2, 5, 7},
        std::array<int64_t, 4>{4, 32, 100, 33}, std::array<int64_t, 4>{2, 8, 2048, 32}}) {
    PaddedTensor computed({rows * k, size}, random.integer(0, 3));
    computed.fill_normal(random);
    std::vector<int32_t> order(num_groups * size), places(rows * k), choice(num_groups);
    std::iota(order.begin(), order.end(), 0);
    std::iota(places.begin(), places.end(), 0);
    std::iota(choice.begin(), choice.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine());
    std::shuffle(places.begin(), places.end(), random.engine());
    const Tensor place = integers({rows * k}), groups = integers({rows, k});
    std::copy(places.begin(), places.end(), place.view().data<int32_t>());
    for (int64_t row = 0; row < rows; ++row) {
      std::shuffle(choice.begin(), choice.end(), random.engine());
      std::copy_n(choice.begin(), k, groups.view().row<int32_t>(row));
    }
    PaddedTensor logits({rows, num_groups * size}, random.integer(0, 3));
    spread_logits(stream, computed, place.view(), groups.view(), order, logits);
    for (int64_t row = 0; row < rows; ++row) {
      float smallest = std::numeric_limits<float>::infinity();
      for (int64_t c = 0; c < k; ++c) {
        const float* values = computed.row(places[row * k + c]);
        smallest = std::min(smallest, *std::min_element(values, values + size));
      }
      std::vector<float> expected(num_groups * size, smallest - 1);
      for (int64_t c = 0; c < k; ++c) {
        for (int64_t j = 0; j < size; ++j) {
          expected[order[groups.view().row<int32_t>(row)[c] * size + j]] =
              computed.row(places[row * k + c])[j];
        }
      }
      for (int64_t i = 0; i < num_groups * size; ++i) {
        ASSERT_EQ(logits.row(row)[i], expected[i]) << "row " << row << ", token " << i;
      }
    }
    EXPECT_TRUE(logits.gaps_untouched());
  }
}

TEST_P(SpreadLogitsTest, FedTokensReplaceOthers) {
  for (const int64_t count : {1, 5, 300}) {
    const int64_t chosen_rows = random.integer(1, 8);
    const Tensor chosen = integers({chosen_rows, 3}), ids = integers({count});
    for (int64_t i = 0; i < chosen_rows * 3; ++i) {
      chosen.view().data<int32_t>()[i] = static_cast<int32_t>(random.integer(-1, 1000));
    }
    std::vector<int32_t> rows, expected;
    for (int64_t i = 0; i < count; ++i) {
      rows.push_back(static_cast<int32_t>(random.integer(-1, chosen_rows - 1)));
      ids.view().data<int32_t>()[i] = static_cast<int32_t>(i);
      expected.push_back(rows.back() < 0 ? static_cast<int32_t>(i)
                                         : std::max(*chosen.view().row<int32_t>(rows.back()), 0));
    }
    feed_tokens(stream, chosen.view(), rows, ids.view());
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(ids.view().data<int32_t>()[i], expected[i]);
  }
}

BRAID_INSTANTIATE_PER_TARGET(SpreadLogitsTest);

}  // namespace
}  // namespace braid

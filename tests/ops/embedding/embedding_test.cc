#include "ops/embedding/embedding.h"

#include "ops/linear/random_weight.h"
#include "ops/op_test.h"
#include "reference/linear.h"

namespace braid {
namespace {

class EmbeddingTest : public OpTest {};

TEST_P(EmbeddingTest, GathersAndScalesRowsOfEveryFormat) {
  for (int id = 0; id < kNumFormats; ++id) {
    const int64_t width = quant_format(static_cast<FormatId>(id)).plain() ? 77 : 512;
    const Weight table = random_weight(random, static_cast<FormatId>(id), {50, width});
    const std::vector<float> expanded = reference::expand(table);
    const Weight placed = on_target(table);
    const float scale = random.uniform(0.5f, 60.0f);
    std::vector<int32_t> ids = {0, 49, 7, 7};
    for (int i = 0; i < 30; ++i) ids.push_back(static_cast<int32_t>(random.integer(0, 49)));
    for (const size_t count : {size_t{0}, size_t{1}, ids.size()}) {
      PaddedTensor y({static_cast<int64_t>(count), width}, 3);
      embedding(stream, placed, std::span(ids).first(count), scale, y);
      EXPECT_TRUE(y.gaps_untouched());
      if (!on_cuda() && !table.format->plain()) {
        PaddedTensor of_panels({static_cast<int64_t>(count), width}, 3);
        embedding(stream, in_panels(table), std::span(ids).first(count), scale, of_panels);
        EXPECT_EQ(of_panels.bits(), y.bits()) << table.format->name;
      }
      for (size_t i = 0; i < count; ++i) {
        for (int64_t c = 0; c < width; ++c) {
          ASSERT_EQ(y.row(static_cast<int64_t>(i))[c], scale * expanded[ids[i] * width + c])
              << table.format->name << " id " << ids[i] << " column " << c;
        }
      }
    }
  }
}

// On a CUDA device nobody looks at the ids.
class EmbeddingIdsTest : public OpTest {};

TEST_P(EmbeddingIdsTest, RefusesIdsOutsideTheTable) {
  const Weight table = random_weight(random, FormatId::kF32, {4, 8});
  PaddedTensor y({1, 8}, 0);
  const int32_t past_the_end = 4, negative = -1;
  // A pool with workers does not survive the fork of a death test.
  ThreadPool one({.num_threads = 1});
  Stream stream_of_one(one);
  EXPECT_DEATH(embedding(stream_of_one, table, std::span(&past_the_end, 1), 1, y), "id 4 of 4");
  EXPECT_DEATH(embedding(stream_of_one, table, std::span(&negative, 1), 1, y), "id -1 of 4");
}

BRAID_INSTANTIATE_PER_TARGET(EmbeddingTest);
BRAID_INSTANTIATE_PER_ISA(EmbeddingIdsTest);

}  // namespace
}  // namespace braid

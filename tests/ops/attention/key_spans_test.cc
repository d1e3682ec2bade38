#include "ops/attention/cuda/key_spans.h"

#include <algorithm>

#include "ops/op_test.h"

namespace braid {
namespace {

using cuda::KeySpans;

TEST(KeySpans, CoverPositionsOneAfterAnother) {
  for (const int64_t window : {0, 1, 64, 1024, 3647, 3648, 4096, 100000}) {
    const KeySpans spans(window);
    int index = 0;
    EXPECT_EQ(spans.begin_of(0), 0);
    for (int position = 0; position < 300000; ++position) {
      if (position == spans.begin_of(index + 1)) ++index;
      ASSERT_EQ(spans.index_of(position), index) << "window " << window << ", " << position;
    }
    EXPECT_EQ(spans.begin_of(index) % 64, 0);
    for (const int position : {1 << 20, (1 << 24) + 12345, 1 << 29}) {
      const int at = spans.index_of(position);
      EXPECT_LE(spans.begin_of(at), position);
      EXPECT_GT(spans.begin_of(at + 1), position);
    }
  }
}

// What the plan of a device's memory counts with: 64, and with a window no more than stretches of
// 64 keys.
TEST(KeySpans, AreFew) {
  EXPECT_EQ(KeySpans(0).most_touched(512 << 10), 64);
  Random random;
  for (int64_t window = 1; window < 20000; window += random.integer(1, 40)) {
    const KeySpans spans(window);
    const int64_t positions = window + 15;
    const int most = spans.most_touched(positions);
    EXPECT_LE(most, std::min<int64_t>(64, (window + 16) / 64 + 2)) << "window " << window;
    for (int i = 0; i < 20; ++i) {
      const auto first = static_cast<int>(random.integer(0, 100000));
      const int last = first + static_cast<int>(positions) - 1;
      EXPECT_LE(spans.index_of(last) - spans.index_of(first) + 1, most) << "window " << window;
    }
  }
}

}  // namespace
}  // namespace braid

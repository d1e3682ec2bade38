#include "ops/logits/scan_logits.h"

#include <cmath>
#include <limits>

#include "ops/op_test.h"

namespace braid {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ScanLogitsTest : public OpTest {};

TEST_P(ScanLogitsTest, FindsTheFirstLargestAndWhatIsNotFinite) {
  for (const int64_t rows : {0, 1, 2, 9}) {
    for (const int64_t width : {1, 2, 15, 16, 17, 31, 32, 33, 255, 1000, 8193, 70001}) {
      if (small_tests() && (rows == 2 || (width > 2 && width < 33))) continue;
      PaddedTensor logits({rows, width}, random.integer(0, 3));
      logits.fill_normal(random);
      for (int64_t i = 0; i < rows; ++i) {
        float* row = logits.row(i);
        const auto place = [&] { return random.integer(0, width - 1); };
        switch (random.integer(0, 5)) {
          case 0:  // equals
            row[place()] = row[place()] = row[place()] = 50;
            break;
          case 1:
            row[place()] = kNan;
            break;
          case 2:
            row[place()] = random.pick({kInfinity, -kInfinity});
            break;
          case 3:
            std::fill_n(row, width, random.pick({-kInfinity, kNan, 0.0f, -3e38f}));
            break;
          default:
            break;
        }
      }
      Tensor summaries(DType::kI32, {rows, 2}, device);
      Workspace::Scope scope(workspace);
      // Twice: a device must leave its counters as it found them.
      for (int round = 0; round < 2; ++round) {
        scan_logits(stream, workspace, logits, summaries.view());
        for (int64_t i = 0; i < rows; ++i) {
          int32_t largest = -1, finite = 1;
          for (int64_t j = 0; j < width; ++j) {
            const float x = logits.row(i)[j];
            if (!std::isfinite(x)) finite = 0;
            if (x > (largest < 0 ? -kInfinity : logits.row(i)[largest])) {
              largest = static_cast<int32_t>(j);
            }
          }
          EXPECT_EQ(summaries.view().row<int32_t>(i)[0], largest) << width;
          EXPECT_EQ(summaries.view().row<int32_t>(i)[1], finite) << width;
        }
      }
      EXPECT_TRUE(logits.gaps_untouched());
    }
  }
}

BRAID_INSTANTIATE_PER_TARGET(ScanLogitsTest);

}  // namespace
}  // namespace braid

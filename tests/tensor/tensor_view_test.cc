#include "tensor/tensor_view.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tensor/tensor.h"

namespace braid {
namespace {

TEST(Shape, DimensionsAndPrinting) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.dim(0), 2);
  EXPECT_EQ(shape.dim(-1), 4);
  EXPECT_EQ(shape[1], 3);
  EXPECT_EQ(shape.num_elements(), 24);
  EXPECT_EQ(to_string(shape), "[2, 3, 4]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_TRUE((shape == Shape{2, 3, 4}));
  EXPECT_FALSE((shape == Shape{2, 3}));
  EXPECT_FALSE((shape == Shape{2, 3, 5}));
  EXPECT_EQ((Shape{3, 0}).num_elements(), 0);
  EXPECT_DEATH(shape.dim(3), "dimension 3 of rank 3");
  EXPECT_DEATH(shape.dim(-4), "dimension -4 of rank 3");
  EXPECT_DEATH((Shape{1, 2, 3, 4, 5}), "rank 5");
}

class TensorViewTest : public testing::Test {
 protected:
  TensorViewTest() : values_(24) { std::iota(values_.begin(), values_.end(), 0.0f); }
  TensorView view(const Shape& shape) { return TensorView(values_.data(), DType::kF32, shape); }
  std::vector<float> values_;
};

TEST_F(TensorViewTest, RowsAreSlices) {
  const TensorView x = view({6, 4});
  EXPECT_EQ(x.row_stride(), 4);
  EXPECT_TRUE(x.contiguous());
  EXPECT_EQ(x.row<float>(5)[3], 23);
  const TensorView middle = x.rows(2, 3);
  EXPECT_TRUE((middle.shape() == Shape{3, 4}));
  EXPECT_EQ(middle.row<float>(0)[0], 8);
  EXPECT_EQ(middle.span<float>().size(), 12u);
  EXPECT_TRUE(x.rows(6, 0).empty());
  EXPECT_DEATH(x.rows(4, 3), "rows \\[4, 7\\) of 6");
  EXPECT_DEATH(x.rows(-1, 1), "of 6");
  const TensorView heads = view({4, 2, 3}).rows(1, 2);
  EXPECT_TRUE((heads.shape() == Shape{2, 2, 3}));
  EXPECT_EQ(heads.data<float>()[0], 6);
}

TEST_F(TensorViewTest, ColumnsKeepTheRowStride) {
  const TensorView x = view({4, 6}).columns(2, 3);
  EXPECT_TRUE((x.shape() == Shape{4, 3}));
  EXPECT_EQ(x.row_stride(), 6);
  EXPECT_FALSE(x.contiguous());
  EXPECT_EQ(x.row<float>(3)[2], 22);
  EXPECT_EQ(x.rows(1, 2).row<float>(1)[0], 14);
  EXPECT_DEATH(x.span<float>(), "row stride 6");
  EXPECT_DEATH(x.columns(2, 2), "columns \\[2, 4\\) of \\[4, 3\\]");
  // One row has no gaps.
  EXPECT_TRUE(x.rows(0, 1).contiguous());
}

TEST_F(TensorViewTest, ReshapeKeepsElements) {
  EXPECT_EQ(view({4, 6}).reshape({2, 3, 4}).row<float>(1)[0], 12);
  EXPECT_EQ(view({4, 6}).reshape({24}).row_stride(), 1);
  // Rows that are apart can be divided, not joined.
  const TensorView heads = view({4, 6}).columns(0, 4).reshape({4, 2, 2});
  EXPECT_EQ(heads.row_stride(), 6);
  EXPECT_EQ(heads.row<float>(2)[3], 15);
  EXPECT_DEATH(view({4, 6}).columns(0, 4).reshape({8, 2}), "row stride 6");
  EXPECT_DEATH(view({4, 6}).reshape({5, 5}), "\\[4, 6\\] as \\[5, 5\\]");
}

TEST_F(TensorViewTest, KnowsItsType) {
  const TensorView x = view({24});
  EXPECT_DEATH(x.data<int32_t>(), "element type is f32");
  EXPECT_EQ(x.dtype(), DType::kF32);
  EXPECT_TRUE(x.device().is_cpu());
  EXPECT_EQ(device_name(x.device()), "cpu");
}

TEST(TensorView, DefaultIsEmpty) {
  const TensorView none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.rank(), 0);
  EXPECT_TRUE(none.contiguous());
}

TEST(Tensor, OwnsZeroedElementsAndMoves) {
  Tensor x(DType::kF32, {3, 5});
  for (const float value : x.view().span<float>()) EXPECT_EQ(value, 0);
  x.data<float>()[14] = 7;
  const float* address = x.data<float>();
  const Tensor y = std::move(x);
  EXPECT_EQ(y.data<float>(), address);
  EXPECT_EQ(y.view().row<float>(2)[4], 7);
  EXPECT_TRUE((y.shape() == Shape{3, 5}));
  EXPECT_TRUE(Tensor().view().empty());
  EXPECT_TRUE(Tensor(DType::kI64, {0, 4}).view().empty());
}

}  // namespace
}  // namespace braid

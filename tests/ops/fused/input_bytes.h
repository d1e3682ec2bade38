#pragma once

#include <vector>

#include "ops/linear/linear.h"
#include "ops/op_test.h"

namespace braid {

// The bytes of a view's rows, one after the other.
inline std::vector<std::byte> bytes_of(const TensorView& view) {
  std::vector<std::byte> bytes;
  if (view.empty()) return bytes;
  const auto element = static_cast<int64_t>(dtype_bytes(view.dtype()));
  const int64_t row_bytes = view.num_elements() / view.dim(0) * element;
  for (int64_t i = 0; i < view.dim(0); ++i) {
    const auto* from = static_cast<const std::byte*>(view.raw()) + i * view.row_stride() * element;
    bytes.insert(bytes.end(), from, from + row_bytes);
  }
  return bytes;
}

// What products read of the two is the same.
inline void expect_same(const LinearInput& actual, const LinearInput& expected) {
  ASSERT_EQ(actual.precision, expected.precision);
  EXPECT_EQ(actual.x.shape(), expected.x.shape());
  EXPECT_EQ(bytes_of(actual.packed), bytes_of(expected.packed));
  EXPECT_EQ(bytes_of(actual.codes), bytes_of(expected.codes));
  EXPECT_EQ(bytes_of(actual.scales), bytes_of(expected.scales));
  EXPECT_EQ(bytes_of(actual.sums), bytes_of(expected.sums));
  EXPECT_EQ(bytes_of(actual.token_codes), bytes_of(expected.token_codes));
  EXPECT_EQ(bytes_of(actual.token_scales), bytes_of(expected.token_scales));
  const bool reads_x =
      expected.packed.rank() == 0 && expected.codes.rank() == 0 && expected.token_codes.rank() == 0;
  if (reads_x) {
    EXPECT_EQ(bytes_of(actual.x), bytes_of(expected.x));
  }
}

}  // namespace braid

#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace braid {
namespace {

// The value of a small float format, from its definition.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const bool negative = (bits >> (mantissa_bits + exponent_bits)) & 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

struct Bf16 {
  using Type = BFloat16;
  static double value(uint32_t bits) { return value_of(bits, 8, 7); }
  static Type from(float x) { return to_bfloat16(x); }
  static constexpr uint16_t kInfinity = 0x7f80;
};
struct Fp16 {
  using Type = Float16;
  static double value(uint32_t bits) { return value_of(bits, 5, 10); }
  static Type from(float x) { return to_float16(x); }
  static constexpr uint16_t kInfinity = 0x7c00;
};

template <typename Format>
class SmallFloat : public testing::Test {};
using Formats = testing::Types<Bf16, Fp16>;
TYPED_TEST_SUITE(SmallFloat, Formats);

TYPED_TEST(SmallFloat, EveryValueConvertsExactlyBothWays) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const typename TypeParam::Type x{static_cast<uint16_t>(bits)};
    const float value = to_float(x);
    const double expected = TypeParam::value(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(to_float(TypeParam::from(value)))) << bits;
      continue;
    }
    ASSERT_EQ(value, expected) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    ASSERT_EQ(TypeParam::from(value).bits, bits);
  }
}

// Between two neighbours: the nearer one, the even one half-way.
TYPED_TEST(SmallFloat, RoundsToNearestEven) {
  for (uint32_t low = 0; low < TypeParam::kInfinity; ++low) {
    const double a = TypeParam::value(low);
    // The value after the largest finite one, as if the exponents went on.
    const double b = low + 1 < TypeParam::kInfinity ? TypeParam::value(low + 1)
                                                    : 2 * a - TypeParam::value(low - 1);
    const float middle = static_cast<float>((a + b) / 2);
    if (static_cast<double>(middle) != (a + b) / 2) continue;  // below the range of float32
    const uint32_t even = low % 2 == 0 ? low : low + 1;
    for (const uint32_t sign : {0u, 0x8000u}) {
      const float m = sign != 0 ? -middle : middle;
      ASSERT_EQ(TypeParam::from(m).bits, even | sign) << low;
      ASSERT_EQ(TypeParam::from(std::nextafter(m, 0.0f)).bits, low | sign) << low;
      const float infinity = std::numeric_limits<float>::infinity();
      ASSERT_EQ(TypeParam::from(std::nextafter(m, sign != 0 ? -infinity : infinity)).bits,
                (low + 1) | sign)
          << low;
    }
  }
}

TYPED_TEST(SmallFloat, RandomFloatsGoToANeighbourAtMostHalfAStepAway) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    const uint16_t bits = TypeParam::from(x).bits;
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(TypeParam::value(bits)));
      continue;
    }
    const double value = TypeParam::value(bits);
    ASSERT_EQ(std::signbit(value), std::signbit(x));
    if (std::isinf(value)) continue;  // covered at the edge above
    const uint32_t magnitude = bits & 0x7fff;
    const double up = TypeParam::value(magnitude + 1) - std::abs(value);
    const double down = magnitude == 0 ? up : std::abs(value) - TypeParam::value(magnitude - 1);
    const double error = std::abs(x) - std::abs(value);
    ASSERT_LE(error, up / 2) << x;
    ASSERT_LE(-error, down / 2) << x;
  }
}

TEST(DType, OverflowBecomesInfinity) {
  EXPECT_EQ(to_float16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_float16(-1e38f).bits, 0xfc00);
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bfloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

TEST(DType, SizesAndNames) {
  std::set<std::string_view> names;
  const auto check = [&](DType dtype, int bytes) {
    EXPECT_EQ(dtype_bytes(dtype), bytes);
    names.insert(dtype_name(dtype));
  };
  check(DTypeOf<double>::value, sizeof(double));
  check(DTypeOf<float>::value, sizeof(float));
  check(DTypeOf<Float16>::value, sizeof(Float16));
  check(DTypeOf<BFloat16>::value, sizeof(BFloat16));
  check(DTypeOf<int64_t>::value, sizeof(int64_t));
  check(DTypeOf<int32_t>::value, sizeof(int32_t));
  check(DTypeOf<int16_t>::value, sizeof(int16_t));
  check(DTypeOf<int8_t>::value, sizeof(int8_t));
  check(DTypeOf<uint8_t>::value, sizeof(uint8_t));
  check(DTypeOf<bool>::value, sizeof(bool));
  EXPECT_EQ(names.size(), 10u);
  EXPECT_FALSE(names.contains("?"));
}

}  // namespace
}  // namespace braid

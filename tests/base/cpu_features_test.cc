#include "base/cpu_features.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace braid {
namespace {

TEST(CpuFeatures, NamesRoundTrip) {
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  }
}

TEST(CpuFeatures, RefusesUnknownNames) {
  for (const char* name : {"", "AVX2", "avx", "avx2 ", "sse2"}) {
    try {
      parse_isa(name);
      FAIL() << name;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("portable, avx2 or avx512"), std::string::npos);
    }
  }
}

TEST(CpuFeatures, SupportedOnesAscendFromPortable) {
  const std::vector<Isa> isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kPortable);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    EXPECT_EQ(isa_supported(isa), std::count(isas.begin(), isas.end(), isa) == 1);
  }
}

TEST(CpuFeatures, CanBeForced) {
  const Isa before = active_isa();
  EXPECT_TRUE(isa_supported(before));
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_supported(isa)) {
      force_isa(isa);
      EXPECT_EQ(active_isa(), isa);
    } else {
      EXPECT_THROW(force_isa(isa), Error);
    }
  }
  force_isa(before);
}

}  // namespace
}  // namespace braid

#include "benchmark/ceilings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/cpu_features.h"
#include "base/error.h"
#include "benchmark/ceiling_kernels.h"
#include "benchmark/model_benchmark.h"
#include "support/temp_folder.h"

namespace braid {
namespace {

class CeilingCacheTest : public ::testing::Test {
 protected:
  testing::TempFolder temp_folder_;
  std::filesystem::path folder_ = temp_folder_.path();
};

TEST(Bound, IsTheLongerOfMovingAndComputing) {
  Ceilings ceilings{.threads = 1, .read_bytes_per_second = 10};
  ceilings.operations_per_second = {100, 200, 400};  // f32, bf16, int8
  Profiler::Entry work{.weight_bytes = 30, .state_bytes = 20, .activation_bytes = 1e9};
  work.operations = {100, 0, 1000};
  Bound bound = bound_of(work, ceilings);
  EXPECT_EQ(bound.what, "memory");  // 5 s against 1 + 2.5 s
  EXPECT_DOUBLE_EQ(bound.seconds, 5);

  work.operations = {100, 0, 2000};
  bound = bound_of(work, ceilings);
  EXPECT_EQ(bound.what, "int8");
  EXPECT_DOUBLE_EQ(bound.seconds, 6);

  work.operations = {1000, 400, 2000};
  bound = bound_of(work, ceilings);
  EXPECT_EQ(bound.what, "f32");
  EXPECT_DOUBLE_EQ(bound.seconds, 17);
}

TEST_F(CeilingCacheTest, KeepsByThreadsAndInstructionSet) {
  const CeilingCache cache(folder_ / "new" / "ceilings.json");
  EXPECT_FALSE(cache.find(1));
  cache.put({1, 10e9, {1e9, 2e9, 3e9}});
  cache.put({2, 20e9, {4e9, 5e9, 6e9}});
  cache.put({2, 21e9, {4e9, 5e9, 6e9}});
  ASSERT_TRUE(cache.find(1));
  ASSERT_TRUE(cache.find(2));
  EXPECT_EQ(cache.find(1)->read_bytes_per_second, 10e9);
  EXPECT_EQ(cache.find(1)->operations_per_second[2], 3e9);
  EXPECT_EQ(cache.find(2)->read_bytes_per_second, 21e9);
  EXPECT_EQ(cache.find(2)->threads, 2);
  EXPECT_FALSE(cache.find(3));
  const Isa before = active_isa();
  if (before != Isa::kPortable) {
    force_isa(Isa::kPortable);
    EXPECT_FALSE(cache.find(1));
    force_isa(before);
  }
}

TEST_F(CeilingCacheTest, BrokenFilesCountAsEmptyAndAreReplaced) {
  const auto path = folder_ / "ceilings.json";
  for (const char* content : {"", "{", "[1]", "null", "{\"x\": 3}"}) {
    std::ofstream(path) << content;
    const CeilingCache cache(path);
    EXPECT_FALSE(cache.find(1)) << content;
    cache.put({1, 5, {1, 2, 3}});
    ASSERT_TRUE(cache.find(1)) << content;
  }
  EXPECT_THROW(CeilingCache(path / "below" / "a_file.json").put({1, 5, {1, 2, 3}}), Error);
  CeilingCache("").put({1, 5, {1, 2, 3}});
  EXPECT_FALSE(CeilingCache("").find(1));
}

TEST_F(CeilingCacheTest, KnownCeilingsAreNotMeasuredAgain) {
  const CeilingCache cache(folder_ / "ceilings.json");
  cache.put({1, 12345, {1, 2, 3}});
  const auto ceilings = find_ceilings({1, 1}, /*measure_again=*/false, cache);
  ASSERT_EQ(ceilings.size(), 1u);
  EXPECT_EQ(ceilings[0].read_bytes_per_second, 12345);
}

// The loops run, on every instruction set, and say how much they do.
TEST(CeilingKernels, Run) {
  const Isa before = active_isa();
  for (const Isa isa : supported_isas()) {
    force_isa(isa);
    const CeilingKernels& kernels = BRAID_KERNELS(kCeilingKernels);
    std::vector<std::byte> data(kReadStreams * 256 * 4, std::byte{1});
    float sink = 0;
    kernels.read(data.data(), static_cast<int64_t>(data.size()), &sink);
    kernels.int8(10, &sink);
    kernels.bf16(10, &sink);
    kernels.f32(10, &sink);
    EXPECT_GT(kernels.int8_operations, kernels.f32_operations);
    EXPECT_GE(kernels.bf16_operations, kernels.f32_operations);
  }
  force_isa(before);
}

}  // namespace
}  // namespace braid

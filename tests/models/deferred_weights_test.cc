#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "checkpoint/dummy_weights.h"
#include "models/weight_rows.h"
#include "quant/deferred_weight.h"
#include "quant/panels.h"
#include "support/fresh_seed.h"
#include "tensor/buffer.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

// What the maker writes behind `offset` bytes of a device's memory, brought to the host.
std::vector<std::byte> made_on(const Weight& weight, Device device, size_t offset = 0) {
  const auto bytes = static_cast<size_t>(weight.size_bytes());
  const Buffer memory(offset + bytes, device);
  payload_maker(weight)->make(memory.data() + offset, device);
  std::vector<std::byte> made(bytes);
  if (device.is_cpu()) {
    std::memcpy(made.data(), memory.data() + offset, bytes);
  } else {
    cuda::copy_to_host(made.data(), memory.data() + offset, bytes, device.index);
  }
  return made;
}

std::vector<std::byte> bytes_of(const Weight& weight) {
  return {weight.data, weight.data + weight.size_bytes()};
}

class DeferredWeights : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!device().is_cpu() && cuda::num_devices() == 0) GTEST_SKIP() << "no CUDA device here";
  }
  Device device() const { return {GetParam(), 0}; }
};

TEST_P(DeferredWeights, DummiesAreMadeAsTheyAreFilled) {
  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE(seed);
  for (const Shape& shape : {Shape{3, 256}, Shape{1030, 768}, Shape{3, 130, 512}}) {
    for (int id = 0; id < kNumFormats; ++id) {
      const QuantFormat& format = quant_format(static_cast<FormatId>(id));
      SCOPED_TRACE(to_string(shape) + " " + std::string(format.name));
      const Weight filled = make_dummy_weight(seed, "w", shape, format);
      const Weight deferred = make_dummy_weight(seed, "w", shape, format, /*fill=*/false);
      EXPECT_EQ(payload_maker(filled), nullptr);
      ASSERT_NE(payload_maker(deferred), nullptr);
      ASSERT_EQ(deferred.format, filled.format);
      EXPECT_EQ(made_on(deferred, device()), bytes_of(filled));
      // Where blocks of 2 bytes, but no longer copies, are aligned.
      EXPECT_EQ(made_on(deferred, device(), 66), bytes_of(filled));
    }
  }
}

TEST_P(DeferredWeights, SelectedRowsAreThoseOfTheWhole) {
  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE(seed);
  const std::vector<RowRange> ranges = {{7, 1}, {64, 32}, {0, 16}, {96, 3}};
  for (const FormatId id : {FormatId::kF32, FormatId::kBF16, FormatId::kW8C, FormatId::kW4G128,
                            FormatId::kQ4_0, FormatId::kQ6K}) {
    const QuantFormat& format = quant_format(id);
    SCOPED_TRACE(format.name);
    const Shape shape{200, 256};
    const Weight filled = select_rows(make_dummy_weight(seed, "w", shape, format), ranges);
    const Weight deferred =
        select_rows(make_dummy_weight(seed, "w", shape, format, /*fill=*/false), ranges);
    ASSERT_EQ(deferred.shape, filled.shape);
    EXPECT_EQ(made_on(deferred, device()), bytes_of(filled));
  }
}

TEST_P(DeferredWeights, StacksMayHoldBothKinds) {
  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE(seed);
  const QuantFormat& format = quant_format(FormatId::kW4G128);
  const auto matrix = [&](const char* name, bool fill) {
    return make_dummy_weight(seed, name, {48, 256}, format, fill);
  };
  const std::vector<Weight> there = {matrix("a", true), matrix("b", true), matrix("c", true)};
  const std::vector<Weight> mixed = {matrix("a", false), matrix("b", true), matrix("c", false)};
  const Weight filled = stack_matrices(there), deferred = stack_matrices(mixed);
  EXPECT_EQ(payload_maker(filled), nullptr);
  ASSERT_EQ(deferred.shape, filled.shape);
  EXPECT_EQ(made_on(deferred, device()), bytes_of(filled));
}

INSTANTIATE_TEST_SUITE_P(Devices, DeferredWeights,
                         ::testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                         [](const auto& info) {
                           return info.param == DeviceKind::kCpu ? "cpu" : "cuda";
                         });

TEST(DeferredPanels, AreMadeAsTheyAreFilled) {
  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE(seed);
  const QuantFormat& panels = *panel_format(quant_format(FormatId::kQ4_0));
  const std::vector<RowRange> whole = {{32, 16}, {0, 16}}, ragged = {{5, 20}};
  const Weight filled = make_dummy_weight(seed, "w", {64, 256}, panels);
  const Weight deferred = make_dummy_weight(seed, "w", {64, 256}, panels, /*fill=*/false);
  EXPECT_EQ(made_on(deferred, {}), bytes_of(filled));
  for (const auto& ranges : {whole, ragged}) {
    EXPECT_EQ(made_on(select_rows(deferred, ranges), {}), bytes_of(select_rows(filled, ranges)));
  }
}

}  // namespace
}  // namespace braid

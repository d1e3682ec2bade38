#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "checkpoint/expect_error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_builder.h"
#include "checkpoint/weight_map.h"

namespace braid {
namespace {

using testing::expect_error;
using testing::GgufBuilder;
using testing::SafetensorsBuilder;

template <typename Tensors>
WeightMap map_of(Tensors tensors) {
  WeightMap map;
  map.set_origin("folder");
  for (StoredTensor& tensor : tensors) map.add(std::move(tensor));
  return map;
}
WeightMap from_safetensors(const std::string& bytes) {
  const auto copy = std::make_shared<std::string>(bytes);
  return map_of(parse_safetensors(std::as_bytes(std::span(*copy)), copy, "m.safetensors"));
}

WeightMap sample() {
  return from_safetensors(SafetensorsBuilder()
                              .add_f32("w", {2, 3}, {1, 2, 3, 4, 5, 6})
                              .add_f32("norm", {3}, {0.5f, 1, 1.5f})
                              .add_f32("scale", {1}, {4})
                              .add("count", "I64", {1}, std::string(8, '\0'))
                              .add_f32("tower.a", {1}, {0})
                              .add_f32("tower.b", {1}, {0})
                              .build());
}

TEST(WeightBinder, BindsAll) {
  const WeightMap map = sample();
  WeightBinder binder(map);
  EXPECT_TRUE(binder.has("w"));
  EXPECT_FALSE(binder.has("v"));
  const Weight w = binder.weight("w", {2, 3});
  EXPECT_EQ(w.shape, (Shape{2, 3}));
  EXPECT_EQ(binder.weight("w", {2, 3}).data, w.data);  // tied weights are bound twice
  const Tensor norm = binder.f32("norm", {3}, 1);
  EXPECT_EQ(norm.data<float>()[2], 2.5f);
  EXPECT_EQ(binder.scalar("scale"), 4);
  binder.ignore("count", "unused");
  binder.ignore("absent", "unused");
  binder.ignore_prefix("tower.", "text only");
  const LoadReport report = binder.finish();
  EXPECT_EQ(report.num_tensors, 6);
  EXPECT_EQ(report.num_consumed, 3);
  EXPECT_EQ(report.num_ignored, 3);
  EXPECT_EQ(report.num_parameters, 10);
  EXPECT_EQ(report.weight_bytes, 40);
  EXPECT_THAT(report.ignored, ::testing::Contains("tower.a (text only)"));
  EXPECT_EQ(to_string(report),
            "3 of 6 tensors consumed (10 parameters, 40 B), 3 ignored: 2 text only, 1 unused");
}

TEST(WeightBinder, ReportsInReadableUnits) {
  LoadReport report{.num_tensors = 658, .num_consumed = 658};
  report.num_parameters = 25'230'000'000;
  report.weight_bytes = 14'100'000'000;
  EXPECT_EQ(to_string(report), "658 of 658 tensors consumed (25.2 B parameters, 14.1 GB)");
}

TEST(WeightBinder, ListsAllFaultsWithTheirFiles) {
  WeightMap map = sample();
  map.rename([](std::string_view name) {
    return name == "norm" ? std::string("final_norm") : std::string();
  });
  WeightBinder binder(map);
  EXPECT_TRUE(binder.weight("w", {3, 2}).empty());
  EXPECT_TRUE(binder.weight("absent", {3, 2}).empty());
  EXPECT_TRUE(binder.weight("absent", {3, 2}).empty());  // told once
  EXPECT_EQ(binder.f32("count", {1}).data<float>()[0], 0);
  EXPECT_EQ(binder.scalar("final_norm"), 0);
  binder.ignore_prefix("tower.", "text only");
  expect_error(
      [&] { binder.finish(); },
      {"folder: ", "w (m.safetensors): shape [2, 3], but the model needs [3, 2]; absent: missing; ",
       "count (m.safetensors): type I64 cannot be read",
       "final_norm (norm of m.safetensors): shape [3], but the model needs a single element",
       "scale (m.safetensors): not used by the model"});
}

TEST(WeightBinder, TellsTwentyFaultsAtMost) {
  const WeightMap map = sample();
  WeightBinder binder(map);
  binder.ignore_prefix("", "all");
  for (int i = 0; i < 25; ++i) binder.weight("absent." + std::to_string(i), {1});
  expect_error([&] { binder.finish(); }, {"absent.19: missing; and 5 more"});
}

TEST(WeightBinder, UnreadableTypesMatterOnlyIfNeeded) {
  const std::string bytes = GgufBuilder()
                                .tensor_f32("w", {1}, {1})
                                .tensor("odd", {256}, 16, std::string(66, '\0'))
                                .build();
  const WeightMap map =
      map_of(GgufFile::parse(std::as_bytes(std::span(bytes)), nullptr, "m.gguf").tensors);
  {
    WeightBinder binder(map);
    binder.weight("w", {1});
    binder.ignore("odd", "not needed");
    EXPECT_EQ(binder.finish().num_consumed, 1);
  }
  WeightBinder binder(map);
  binder.weight("w", {1});
  binder.weight("odd", {256});
  expect_error([&] { binder.finish(); }, {"odd (m.gguf): type iq2_xxs cannot be read"});
}

TEST(WeightBinder, BindsIntegers) {
  const auto bytes_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), sizeof(values));
  };
  const WeightMap map = from_safetensors(
      SafetensorsBuilder()
          .add("wide", "I64", {3}, bytes_of(std::array<int64_t, 3>{1, -1, int64_t{1} << 40}))
          .add("narrow", "I32", {2}, bytes_of(std::array<int32_t, 2>{7, -7}))
          .add_f32("real", {1}, {1})
          .build());
  {
    WeightBinder binder(map);
    EXPECT_EQ(binder.integers("wide", {3}), (std::vector<int64_t>{1, -1, int64_t{1} << 40}));
    EXPECT_EQ(binder.integers("narrow", {2}), (std::vector<int64_t>{7, -7}));
    binder.scalar("real");
    const LoadReport report = binder.finish();
    EXPECT_EQ(report.num_consumed, 3);
    EXPECT_EQ(report.num_parameters, 1);
    EXPECT_EQ(report.weight_bytes, 3 * 8 + 2 * 4 + 4);
  }
  WeightBinder binder(map);
  EXPECT_TRUE(binder.integers("wide", {4}).empty());
  EXPECT_TRUE(binder.integers("real", {1}).empty());
  EXPECT_TRUE(binder.integers("absent", {1}).empty());
  binder.weight("narrow", {2});
  expect_error([&] { binder.finish(); },
               {"wide (m.safetensors): shape [3]", "real (m.safetensors): type F32 cannot be read",
                "absent: missing", "narrow (m.safetensors): type I32 cannot be read"});
}

TEST(WeightBinder, PayloadsAreAligned) {
  // Whatever the length of the name, one of these headers leaves the data at an odd address.
  for (const char* name : {"w", "wx", "wxy", "wxyz"}) {
    const WeightMap map =
        from_safetensors(SafetensorsBuilder().add_f32(name, {2}, {1.5f, -2}).build());
    WeightBinder binder(map);
    const Weight weight = binder.weight(name, {2});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(weight.data) % alignof(float), 0u);
    EXPECT_EQ(reinterpret_cast<const float*>(weight.data)[1], -2);
    EXPECT_EQ(binder.f32(name, {2}).data<float>()[0], 1.5f);
  }
}

TEST(WeightBinder, BindsRandomWeights) {
  const WeightMap map = WeightMap::dummy(1, quant_format(FormatId::kQ8_0));
  EXPECT_TRUE(map.is_dummy());
  WeightBinder binder(map);
  EXPECT_FALSE(binder.has("optional"));
  const Weight w = binder.weight("w", {64, 96});
  EXPECT_EQ(w.format->id, FormatId::kQ8_0);
  EXPECT_NEAR(binder.f32("norm", {8}, 1).data<float>()[0], 1, 0.5);
  EXPECT_NEAR(binder.scalar("scale"), 1, 0.5);
  binder.ignore_prefix("tower.", "text only");
  const LoadReport report = binder.finish();
  EXPECT_EQ(report.num_tensors, 3);
  EXPECT_EQ(report.num_consumed, 3);
  EXPECT_EQ(report.num_parameters, 64 * 96 + 8 + 1);
  EXPECT_EQ(report.weight_bytes, 64 * 3 * 34 + 9 * 4);
}

}  // namespace
}  // namespace braid

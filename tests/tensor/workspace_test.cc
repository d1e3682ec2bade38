#include "tensor/workspace.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "base/error.h"

namespace braid {
namespace {

TEST(Workspace, TakesAlignedDisjointViews) {
  Workspace workspace(1 << 16);
  const TensorView a = workspace.take(DType::kF32, {3, 5});
  const TensorView b = workspace.take(DType::kI8, {1});
  const TensorView c = workspace.take(DType::kF64, {2, 2});
  for (const TensorView& view : {a, b, c}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.raw()) % 64, 0u);
    EXPECT_TRUE(view.contiguous());
  }
  EXPECT_GE(static_cast<std::byte*>(b.raw()), static_cast<std::byte*>(a.raw()) + 60);
  EXPECT_GT(static_cast<std::byte*>(c.raw()), static_cast<std::byte*>(b.raw()));
  EXPECT_EQ(workspace.used_bytes(), 192u);
  EXPECT_TRUE(workspace.take(DType::kF32, {0, 7}).empty());
  EXPECT_EQ(workspace.used_bytes(), 192u);
}

TEST(Workspace, ScopesGiveBackAndAddressesRepeat) {
  Workspace workspace(1 << 16);
  const void* outer = workspace.take(DType::kF32, {16}).raw();
  const void* first = nullptr;
  for (int step = 0; step < 3; ++step) {
    Workspace::Scope scope(workspace);
    const void* inner = workspace.take(DType::kF32, {100}).raw();
    EXPECT_NE(inner, outer);
    if (first == nullptr) first = inner;
    EXPECT_EQ(inner, first);
    {
      Workspace::Scope nested(workspace);
      EXPECT_NE(workspace.take(DType::kF32, {100}).raw(), inner);
    }
    EXPECT_EQ(workspace.used_bytes(), 64u + 448u);
  }
  EXPECT_EQ(workspace.used_bytes(), 64u);
  EXPECT_EQ(workspace.high_water_bytes(), 64u + 2 * 448u);
}

TEST(Workspace, ThrowsWhenFull) {
  Workspace workspace(256);
  workspace.take(DType::kU8, {129});  // 192 with padding
  try {
    workspace.take(DType::kF32, {17});
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("68 bytes for a f32 tensor of shape [17]"), std::string::npos)
        << message;
    EXPECT_NE(message.find("192 of 256"), std::string::npos) << message;
  }
  // A refusal takes nothing, and what fits still fits.
  EXPECT_EQ(workspace.used_bytes(), 192u);
  workspace.take(DType::kF32, {16});
  EXPECT_EQ(workspace.used_bytes(), workspace.capacity_bytes());
}

}  // namespace
}  // namespace braid

#include "tensor/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "base/error.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

TEST(Buffer, IsZeroedAndAligned) {
  for (const size_t size :
       {size_t{1}, size_t{63}, size_t{64}, size_t{4097}, (size_t{2} << 20) + 3}) {
    const Buffer buffer(size, Device{});
    EXPECT_EQ(buffer.size_bytes(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.data()[0], std::byte{0});
    EXPECT_EQ(buffer.data()[size - 1], std::byte{0});
    buffer.data()[size - 1] = std::byte{1};
  }
}

TEST(Buffer, EmptyAndMoved) {
  Buffer empty(0, Device{});
  EXPECT_EQ(empty.data(), nullptr);
  Buffer a(100, Device{});
  std::byte* data = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: moved-from on purpose
  EXPECT_EQ(a.size_bytes(), 0u);
  empty = std::move(b);
  EXPECT_EQ(empty.data(), data);
  EXPECT_EQ(empty.size_bytes(), 100u);
  Buffer& same = empty;
  empty = std::move(same);
  EXPECT_EQ(empty.data(), data);
}

TEST(Buffer, ReservesAddressSpaceOnly) {
  const Buffer large(size_t{1} << 40, Device{});
  large.data()[(size_t{1} << 39) + 5] = std::byte{9};
  EXPECT_EQ(large.data()[(size_t{1} << 39) + 5], std::byte{9});
}

TEST(Buffer, SaysWhatItCannotHave) {
  try {
    Buffer(size_t{1} << 62, Device{});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("4611686018427387904 bytes"), std::string::npos);
  }
  const int missing = cuda::num_devices() + 2;
  try {
    Buffer(1, Device{DeviceKind::kCuda, missing});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cuda:" + std::to_string(missing)), std::string::npos);
  }
}

}  // namespace
}  // namespace braid

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "tensor/buffer.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

constexpr Device kFirstGpu{DeviceKind::kCuda, 0};

TEST(CudaBuffer, HoldsWhatIsCopiedToIt) {
  if (cuda::num_devices() == 0) GTEST_SKIP() << "no CUDA device here";
  std::vector<int> sent(100003), received(sent.size());
  std::iota(sent.begin(), sent.end(), 1);
  const size_t size = sent.size() * sizeof(int);
  Buffer buffer(size, kFirstGpu);
  cuda::copy_to_host(received.data(), buffer.data(), size, 0);
  EXPECT_EQ(received, std::vector<int>(sent.size())) << "new memory is zero";
  cuda::copy_to_device(buffer.data(), sent.data(), size, 0);
  const Buffer moved(std::move(buffer));
  cuda::copy_to_host(received.data(), moved.data(), size, 0);
  EXPECT_EQ(received, sent);
}

TEST(CudaBuffer, WithoutADeviceTheErrorNamesIt) {
  if (cuda::num_devices() > 0) GTEST_SKIP() << "there is a CUDA device";
  try {
    Buffer(64, kFirstGpu);
    FAIL() << "memory on a device that is not there";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cuda"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace braid

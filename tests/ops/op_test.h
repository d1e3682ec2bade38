#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"
#include "tensor/workspace.h"

namespace braid {

// Half the distance from 1 to the next float32: the largest relative error of one rounding.
inline constexpr double kUnitRoundoff = 0x1p-24;
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Random inputs, other ones in every run; BRAID_TEST_SEED repeats a run.
class Random {
 public:
  Random() {
    const char* given = std::getenv("BRAID_TEST_SEED");
    seed_ = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    engine_.seed(seed_);
  }
  uint64_t seed() const { return seed_; }
  float normal(float deviation = 1) {
    return deviation * std::normal_distribution<float>()(engine_);
  }
  float uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(engine_);
  }
  // low <= result <= high
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  uint64_t seed_;
  std::mt19937_64 engine_;
};

// BRAID_TEST_SMALL is set: under sanitizers, which make kernels tens to hundreds of times slower,
// tests take fewer and smaller cases that launch the same kernels.
inline bool small_tests() {
  static const bool small = std::getenv("BRAID_TEST_SMALL") != nullptr;
  return small;
}

// Where the tensors of the running test live. CUDA memory is then of the kind that the host can
// read and write as well.
inline Device op_test_device;

// A float32 tensor whose rows are `gap` elements apart in memory; all of it starts as NaN.
class PaddedTensor {
 public:
  PaddedTensor(const Shape& shape, int64_t gap) {
    int64_t width = 1;
    for (int i = 1; i < shape.rank(); ++i) width *= shape.dim(i);
    storage_ = Tensor(DType::kF32, {shape.dim(0), width + gap}, op_test_device);
    poison();
    const TensorView rows = storage_.view().columns(0, width);
    view_ = shape.rank() == 2 ? rows : rows.reshape(shape);
    gap_ = gap;
  }
  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: implicit by design
  float* row(int64_t i) const { return view_.row<float>(i); }
  int64_t row_elements() const { return storage_.shape().dim(1) - gap_; }

  void poison() {
    for (float& x : storage_.view().span<float>()) x = kNan;
  }
  void fill_normal(Random& random, float deviation = 1) {
    for (int64_t i = 0; i < view_.dim(0); ++i) {
      for (int64_t j = 0; j < row_elements(); ++j) row(i)[j] = random.normal(deviation);
    }
  }
  void copy_from(const PaddedTensor& other) {
    for (int64_t i = 0; i < view_.dim(0); ++i) {
      std::copy_n(other.row(i), row_elements(), row(i));
    }
  }
  // True if nothing was written between the rows.
  bool gaps_untouched() const {
    for (int64_t i = 0; i < view_.dim(0); ++i) {
      for (int64_t j = 0; j < gap_; ++j) {
        if (!std::isnan(row(i)[row_elements() + j])) return false;
      }
    }
    return true;
  }
  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> bits;
    for (int64_t i = 0; i < view_.dim(0); ++i) {
      for (int64_t j = 0; j < row_elements(); ++j) {
        bits.push_back(std::bit_cast<uint32_t>(row(i)[j]));
      }
    }
    return bits;
  }

 private:
  Tensor storage_;
  TensorView view_;
  int64_t gap_ = 0;
};

// A stream of its own, with so many threads on the CPU, where the running test's tensors live.
class OtherStream {
 public:
  explicit OtherStream(int threads)
      : pool_({.num_threads = threads}), stream_(pool_, op_test_device) {
    if (!stream_.is_cpu()) stream_.cuda().set_synchronous(true);
  }
  operator Stream&() { return stream_; }  // NOLINT: implicit by design

 private:
  ThreadPool pool_;
  Stream stream_;
};

// What a test runs on: the CPU with the kernels of an instruction set, or the first CUDA device.
struct OpTarget {
  Isa isa = Isa::kPortable;
  bool cuda = false;

  std::string name() const { return cuda ? "cuda" : std::string(isa_name(isa)); }
  Device device() const { return cuda ? Device{DeviceKind::kCuda, 0} : Device{}; }
  bool available() const { return cuda ? cuda::num_devices() > 0 : isa_supported(isa); }
};
inline void PrintTo(const OpTarget& target, std::ostream* out) { *out << target.name(); }

// Runs each test once per target, by force; those that this machine lacks are reported as skipped.
// On a CUDA device every op is waited for.
class OpTest : public testing::TestWithParam<OpTarget> {
 protected:
  OpTest() : trace_(__FILE__, __LINE__, "BRAID_TEST_SEED=" + std::to_string(random.seed())) {
    if (on_cuda()) stream.cuda().set_synchronous(true);
  }

  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "this machine has no " << GetParam().name();
    op_test_device = device;
    previous_ = active_isa();
    if (!GetParam().cuda) force_isa(GetParam().isa);
  }
  void TearDown() override {
    op_test_device = {};
    if (GetParam().available()) force_isa(previous_);
  }

  bool on_cuda() const { return !device.is_cpu(); }

  // The target's device; the CPU if there is none.
  Device device = GetParam().available() ? GetParam().device() : Device{};

 private:
  std::unique_ptr<cuda::ManagedMemoryScope> managed_ =
      on_cuda() ? std::make_unique<cuda::ManagedMemoryScope>() : nullptr;

 protected:
  Random random;
  ThreadPool pool{{.num_threads = 2}};
  Stream stream{pool, device};
  Workspace workspace{size_t{1} << 30, device};

 private:
  testing::ScopedTrace trace_;
  Isa previous_ = Isa::kPortable;
};

inline std::string target_name(const ::testing::TestParamInfo<OpTarget>& info) {
  return info.param.name();
}

#define BRAID_INSTANTIATE_PER_ISA(Suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(                                                                      \
      Isas, Suite,                                                                               \
      ::testing::Values(OpTarget{Isa::kPortable}, OpTarget{Isa::kAvx2}, OpTarget{Isa::kAvx512}), \
      target_name)
// The same and CUDA.
#define BRAID_INSTANTIATE_PER_TARGET(Suite) \
  BRAID_INSTANTIATE_PER_ISA(Suite);         \
  INSTANTIATE_TEST_SUITE_P(Devices, Suite, ::testing::Values(OpTarget{.cuda = true}), target_name)

}  // namespace braid

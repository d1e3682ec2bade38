#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/attention/paged_kv.h"
#include "ops/op_test.h"

namespace braid {

// A store with random contents, and a copy of it. New rows of int8 get their own scales, or static
// ones that some numbers of a normal distribution are beyond.
struct TwinStores {
  TwinStores(DType dtype, const Shape& shape, Device device, Random& random) {
    const Shape scale_shape{shape[0], shape[1], shape[2]};
    for (Tensor* tensor : {&keys, &values, &other_keys, &other_values}) {
      *tensor = Tensor(dtype, shape, device);
    }
    if (dtype == DType::kI8) {
      for (Tensor* tensor : {&key_scales, &value_scales, &other_key_scales, &other_value_scales}) {
        *tensor = Tensor(DType::kF32, scale_shape, device);
      }
    }
    fill(keys, key_scales, random);
    fill(values, value_scales, random);
    copy(keys, other_keys);
    copy(values, other_values);
    if (dtype != DType::kI8) return;
    copy(key_scales, other_key_scales);
    copy(value_scales, other_value_scales);
    if (random.integer(0, 1) == 1) {
      static_scales = {random.uniform(0.005f, 0.03f), random.uniform(0.005f, 0.03f)};
    }
  }
  PagedKv cache() const {
    return {keys.view(), values.view(), key_scales.view(), value_scales.view(), static_scales};
  }
  PagedKv other() const {
    return {other_keys.view(), other_values.view(), other_key_scales.view(),
            other_value_scales.view(), static_scales};
  }
  bool are_equal() const {
    const auto same = [](const Tensor& a, const Tensor& b) {
      const int64_t bytes = a.shape().num_elements() * dtype_bytes(a.dtype());
      return std::memcmp(a.view().raw(), b.view().raw(), bytes) == 0;
    };
    return same(keys, other_keys) && same(values, other_values) &&
           (keys.dtype() != DType::kI8 ||
            (same(key_scales, other_key_scales) && same(value_scales, other_value_scales)));
  }
  double largest_key() const { return largest(keys, key_scales); }
  double largest_value() const { return largest(values, value_scales); }

  Tensor keys, values, key_scales, value_scales;
  Tensor other_keys, other_values, other_key_scales, other_value_scales;
  KvScales static_scales;  // int8: none, or some

 private:
  static void fill(Tensor& tensor, Tensor& scales, Random& random) {
    if (tensor.dtype() == DType::kBF16) {
      for (BFloat16& x : tensor.view().span<BFloat16>()) x = to_bfloat16(random.normal());
      return;
    }
    for (int8_t& x : tensor.view().span<int8_t>()) {
      x = static_cast<int8_t>(random.integer(-127, 127));
    }
    for (float& x : scales.view().span<float>()) x = random.uniform(0.005f, 0.03f);
  }
  static void copy(const Tensor& from, Tensor& to) {
    std::memcpy(to.view().raw(), from.view().raw(),
                from.shape().num_elements() * dtype_bytes(from.dtype()));
  }
  static double largest(const Tensor& tensor, const Tensor& scales) {
    double largest = 0;
    if (tensor.dtype() == DType::kBF16) {
      for (const BFloat16 x : tensor.view().span<BFloat16>()) {
        largest = std::max(largest, std::fabs(double{to_float(x)}));
      }
      return largest;
    }
    for (const float x : scales.view().span<float>()) largest = std::max(largest, 127.0 * x);
    return largest;
  }
};

}  // namespace braid

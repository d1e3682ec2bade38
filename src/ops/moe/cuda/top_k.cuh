#pragma once

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

struct Choice {
  int expert;
  float logit;
};

// The largest of up to kPerLane · 32 logits, one after another, by a whole warp: descending, NaN
// last, of equal ones the lower index first.
template <int kPerLane>
class WarpTopK {
 public:
  __device__ void load(const float* logits, int count, int lane) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int i = j * kWarp + lane;
      keys_[j] = i < count ? key_of(logits[i]) : kTaken;
    }
    find_own_best();
  }

  // Must not be called more often than there are logits.
  __device__ Choice take_next(int lane) {
    const unsigned best = __reduce_max_sync(0xffffffffu, best_);
    const unsigned index = __reduce_min_sync(
        0xffffffffu, best_ == best ? static_cast<unsigned>(best_at_ * kWarp + lane) : ~0u);
    if (index % kWarp == static_cast<unsigned>(lane)) {
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        if (j == static_cast<int>(index / kWarp)) keys_[j] = kTaken;
      }
      find_own_best();
    }
    return {static_cast<int>(index), value_of(best)};
  }

 private:
  static constexpr unsigned kTaken = 0, kNan = 1, kSign = 0x80000000u;

  // Unsigned numbers in the order of the logits.
  __device__ static unsigned key_of(float x) {
    if (isnan(x)) return kNan;
    const unsigned bits = __float_as_uint(x + 0.0f);  // −0 becomes 0
    return bits & kSign ? ~bits : bits | kSign;
  }
  __device__ static float value_of(unsigned key) {
    if (key == kNan) return __uint_as_float(0x7fffffffu);
    return __uint_as_float(key & kSign ? key ^ kSign : ~key);
  }
  __device__ void find_own_best() {
    unsigned best[kPerLane];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) best[j] = keys_[j];
#pragma unroll
    for (int n = kPerLane / 2; n > 0; n /= 2) {
#pragma unroll
      for (int j = 0; j < n; ++j) best[j] = max(best[j], best[j + n]);
    }
    best_ = best[0];
    best_at_ = 0;
#pragma unroll
    for (int j = kPerLane - 1; j >= 0; --j) best_at_ = keys_[j] == best_ ? j : best_at_;
  }

  static_assert((kPerLane & (kPerLane - 1)) == 0);
  unsigned keys_[kPerLane];
  unsigned best_;
  int best_at_;
};

}  // namespace braid::cuda

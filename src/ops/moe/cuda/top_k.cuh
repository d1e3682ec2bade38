#pragma once

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

struct Choice {
  int expert;
  float logit;
};

// Shared memory of a warp that chooses.
struct ChoiceRoom {
  uint4 bests[kWarp / 4];
  uint64_t candidates[kWarp];
  uint64_t chosen[kWarp];
};

// The k largest of up to kPerLane · 32 logits by a whole warp: descending, NaN last, of equal ones
// the lower index first. The code is short: a kernel that chooses runs once, and fetching its
// instructions takes the time.
template <int kPerLane>
class WarpTopK {
 public:
  __device__ WarpTopK(const float* logits, int count, int lane)
      : logits_(logits), count_(count), lane_(lane) {
    float values[kPerLane];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      values[j] = j * kWarp + lane < count ? logits[j * kWarp + lane] : 0;
    }
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      keys_[j] = j * kWarp + lane < count ? key_of(values[j]) : kNone;
    }
  }

  // Choice i for lane i < k; k: at most 32 and at most as many as there are logits. The k-th
  // largest of the lanes' own bests is a bound that seldom leaves more than 32 candidates, whose
  // ranks are then counted.
  __device__ Choice choose(int k, ChoiceRoom& room) const {
    unsigned best = keys_[0];
#pragma unroll
    for (int j = 1; j < kPerLane; ++j) best = max(best, keys_[j]);
    reinterpret_cast<unsigned*>(room.bests)[lane_] = best;
    __syncwarp();
    int greater = 0;
#pragma unroll 2
    for (int i = 0; i < kWarp / 4; ++i) {
      const uint4 others = room.bests[i];
      greater += (others.x > best) + (others.y > best) + (others.z > best) + (others.w > best);
    }
    const unsigned bound = max(__reduce_min_sync(0xffffffffu, greater < k ? best : ~0u), kNone + 1);
    int own = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) own += keys_[j] >= bound;
    int through = own;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane_ >= distance) through += other;
    }
    const int candidates = __shfl_sync(0xffffffffu, through, kWarp - 1);
    uint64_t choice = 0;
    if (candidates > kWarp) {
      choice = choose_in_turn(k);
    } else {
      uint64_t* to = room.candidates + through - own;
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        if (keys_[j] >= bound) *to++ = packed(keys_[j], j * kWarp + lane_);
      }
      __syncwarp();
      const uint64_t mine = lane_ < candidates ? room.candidates[lane_] : 0;
      int rank = 0;
#pragma unroll 2
      for (int i = 0; i < candidates; ++i) rank += room.candidates[i] > mine;
      if (lane_ < candidates && rank < k) room.chosen[rank] = mine;
      __syncwarp();
      if (lane_ < k) choice = room.chosen[lane_];
    }
    __syncwarp();  // the room is free
    return {static_cast<int>(~static_cast<unsigned>(choice)),
            value_of(static_cast<unsigned>(choice >> 32))};
  }

 private:
  static constexpr unsigned kNone = 0, kNan = 1, kSign = 0x80000000u;

  // Unsigned numbers in the order of the logits.
  __device__ static unsigned key_of(float x) {
    const unsigned bits = __float_as_uint(x + 0.0f);  // −0 becomes 0
    const unsigned key = bits & kSign ? ~bits : bits | kSign;
    return isnan(x) ? kNan : key;
  }
  __device__ static float value_of(unsigned key) {
    if (key == kNan) return __uint_as_float(0x7fffffffu);
    return __uint_as_float(key & kSign ? key ^ kSign : ~key);
  }
  __device__ static uint64_t packed(unsigned key, int index) {
    return uint64_t{key} << 32 | ~static_cast<unsigned>(index);
  }

  // One after another, each the largest that is below the one before.
  __device__ uint64_t choose_in_turn(int k) const {
    uint64_t own = 0, last = ~uint64_t{0};
#pragma unroll 1
    for (int i = 0; i < k; ++i) {
      uint64_t best = 0;
#pragma unroll 1
      for (int index = lane_; index < count_; index += kWarp) {
        const uint64_t one = packed(key_of(logits_[index]), index);
        if (one < last && one > best) best = one;
      }
      const unsigned high = __reduce_max_sync(0xffffffffu, static_cast<unsigned>(best >> 32));
      const unsigned low = __reduce_max_sync(
          0xffffffffu, static_cast<unsigned>(best >> 32) == high ? static_cast<unsigned>(best) : 0);
      last = uint64_t{high} << 32 | low;
      if (i == lane_) own = last;
    }
    return own;
  }

  const float* logits_;
  int count_, lane_;
  unsigned keys_[kPerLane];
};

}  // namespace braid::cuda

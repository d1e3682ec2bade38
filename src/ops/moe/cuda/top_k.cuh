#pragma once

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

struct Choice {
  int expert;
  float logit;
};

// Shared memory of a warp that chooses.
struct ChoiceRoom {
  uint64_t candidates[kWarp];
  uint64_t chosen[kWarp];
};

// The largest of up to kPerLane · 32 logits by a whole warp: descending, NaN last, of equal ones
// the lower index first.
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

  // Choice i for lane i < k; k: at most 32 and at most as many as there are logits. The k-th
  // largest of the lanes' own bests is a bound that seldom leaves more than 32 candidates, whose
  // ranks are then counted.
  __device__ Choice choose(int k, int lane, ChoiceRoom& room) {
    int greater = 0;
#pragma unroll
    for (int other = 0; other < kWarp; ++other) {
      greater += __shfl_sync(0xffffffffu, best_, other) > best_;
    }
    const unsigned bound =
        max(__reduce_min_sync(0xffffffffu, greater < k ? best_ : ~0u), kTaken + 1);
    int own = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) own += keys_[j] >= bound;
    int through = own;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane >= distance) through += other;
    }
    const int candidates = __shfl_sync(0xffffffffu, through, kWarp - 1);
    if (candidates > kWarp) return choose_in_turn(k, lane);
    int at = through - own;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (keys_[j] >= bound) room.candidates[at++] = packed(keys_[j], j * kWarp + lane);
    }
    __syncwarp();
    const uint64_t mine = lane < candidates ? room.candidates[lane] : 0;
    int rank = 0;
#pragma unroll 4
    for (int i = 0; i < candidates; ++i) rank += room.candidates[i] > mine;
    if (lane < candidates && rank < k) room.chosen[rank] = mine;
    __syncwarp();
    const uint64_t choice = lane < k ? room.chosen[lane] : 0;
    __syncwarp();  // the room is free
    return {static_cast<int>(~static_cast<unsigned>(choice)),
            value_of(static_cast<unsigned>(choice >> 32))};
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
  __device__ static uint64_t packed(unsigned key, int index) {
    return uint64_t{key} << 32 | ~static_cast<unsigned>(index);
  }

  // One after another.
  __device__ Choice choose_in_turn(int k, int lane) {
    Choice own{};
#pragma unroll 1
    for (int i = 0; i < k; ++i) {
      const unsigned best = __reduce_max_sync(0xffffffffu, best_);
      unsigned first = ~0u;  // of this lane's that are equal to it
#pragma unroll
      for (int j = kPerLane - 1; j >= 0; --j) {
        first = keys_[j] == best ? static_cast<unsigned>(j * kWarp + lane) : first;
      }
      const unsigned index = __reduce_min_sync(0xffffffffu, first);
      if (i == lane) own = {static_cast<int>(index), value_of(best)};
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        keys_[j] = static_cast<unsigned>(j * kWarp + lane) == index ? kTaken : keys_[j];
      }
      find_own_best();
    }
    return own;
  }
  __device__ void find_own_best() {
    best_ = keys_[0];
#pragma unroll
    for (int j = 1; j < kPerLane; ++j) best_ = max(best_, keys_[j]);
  }

  unsigned keys_[kPerLane];
  unsigned best_;  // of this lane
};

}  // namespace braid::cuda

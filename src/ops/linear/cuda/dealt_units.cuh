#pragma once

// Units of one size that go, in their order, to the blocks that are done first with what they had
// before (list scheduling; equal ones by their numbers): each block works out its own, by a warp.

#include <cstdint>

#include "ops/cuda/launch.cuh"

namespace braid::cuda {

// Units are dealt out to up to so many blocks.
inline constexpr int kMostDealtTo = 192;

// Adds what the blocks have of `units` that they take in turn, from block `start` on, to their
// loads; returns the largest load of this lane's blocks, every 32nd one.
__device__ __forceinline__ int add_turns(int32_t* loads, int blocks, int start, int units,
                                         int steps) {
  const int rounds = units / blocks, left = units - rounds * blocks;
  int most = 0;
#pragma unroll 1
  for (int b = threadIdx.x % kWarp; b < blocks; b += kWarp) {
    const int turn = b < start ? b - start + blocks : b - start;
    loads[b] += (rounds + (turn < left ? 1 : 0)) * steps;
    most = max(most, loads[b]);
  }
  return most;
}

// Block `own`'s units, of `units` of so many steps, in ascending order to dealt[most]; behind the
// last one is a number that no unit has. Loads below `least` count as that. loads: in shared
// memory, of [blocks], which is used up.
__device__ __forceinline__ void deal_units(int32_t* loads, int blocks, int own, int least,
                                           int units, int steps, int32_t* dealt, int most) {
  const int lane = threadIdx.x % kWarp;
  __syncwarp();
  const int own_load = max(loads[own], least);
  __syncwarp();
  // This block's unit j begins at own_load + j · steps; before it, in time or by the block's
  // number, max(0, j + before) units of another block begin.
  int32_t* before = loads;
#pragma unroll 1
  for (int b = lane; b < blocks; b += kWarp) {
    const int ahead = own_load - max(loads[b], least);
    const int whole = ahead >= 0 ? (ahead + steps - 1) / steps : -(-ahead / steps);
    before[b] = whole + (whole * steps == ahead && b < own ? 1 : 0);
  }
  int count = 0;
#pragma unroll 1
  for (; count < most - 1; ++count) {
    int index = 0;
#pragma unroll 1
    for (int b = lane; b < blocks; b += kWarp) index += max(0, count + before[b]);
    index = __reduce_add_sync(0xffffffffu, index);
    if (index >= units) break;
    if (lane == 0) dealt[count] = index;
  }
  if (lane == 0) dealt[count] = INT32_MAX;
}

}  // namespace braid::cuda

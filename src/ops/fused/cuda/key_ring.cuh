#pragma once

// Keys and values of a KV head on their way to shared memory, ahead of the block that goes through
// them: groups of eight rows, which lie in a page each, in slots that are filled again once all
// warps are done with them.
//
// What is copied before wait_for_inputs() was stored by earlier steps. The row of the step's own
// token may be stored while its group is copied: nothing looks at that copy.

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/launch.cuh"

namespace braid::cuda {

template <typename Shape>
class KeyRing {
 public:
  using Stored = typename Shape::Stored;
  static constexpr int kGroup = 8, kTileGroups = Shape::kKeys / kGroup;
  // At least a tile's, or the block would wait for what has no room; a lane copies one at a time.
  static constexpr int kLeastSlots = kTileGroups, kMostSlots = kWarp;

  // Of shared memory.
  static constexpr int bytes(int slots) {
    return 2 * kBarriers * static_cast<int>(sizeof(uint64_t)) + slots * kSlotBytes;
  }

  // memory: bytes(slots), aligned to 128; the block has num_groups groups.
  __device__ KeyRing(unsigned char* memory, int slots, int num_groups)
      : barriers_(shared_address(memory)),
        keys_(memory + 2 * kBarriers * sizeof(uint64_t)),
        values_(keys_ + slots * kKeyPitch),
        slots_(slots),
        num_groups_(num_groups),
        next_(0),
        slot_(0) {}

  // By all warps: the first two copy, keys and values, as many groups as there are slots. find(i):
  // where group i is, in units of 8 elements. Others may wait after a barrier of the block.
  template <typename Find>
  __device__ void fill(const Stored* keys, const Stored* values, const Find& find) {
    if (warp() > 1) return;
    if (lane() == 0) {
#pragma unroll 1
      for (int i = 0; i < kBarriers; ++i) init_barrier(barrier(warp(), i), 1);
      publish_barriers();
    }
    __syncwarp();
    publish_global_to_copies();  // rows that kernels long before this one have stored
    from_ = warp() == 0 ? keys : values;
    found_ = find(lane());
    copy(slots_);
    next_ = slots_;
    found_ = find(next_ + lane());
  }

  // After a barrier of the block that follows await_keys() of this tile: copies what has room now,
  // in the place of this tile's keys and of the values of the one before.
  template <typename Find>
  __device__ void refill(int tile, const Find& find) {
    if (warp() > 1 || next_ >= num_groups_ || (warp() == 1 && tile == 0)) return;
    copy(kTileGroups);
    next_ += kTileGroups;
    slot_ = later(slot_);
    found_ = find(next_ + lane());
  }

  __device__ void await_keys(int tile) const { await(0, tile); }
  __device__ void await_values(int tile) const { await(1, tile); }
  // Of group 0 to slots - 1.
  __device__ const Stored* keys_at(int slot) const {
    return reinterpret_cast<const Stored*>(keys_ + slot * kKeyPitch);
  }
  __device__ const Stored* values_at(int slot) const {
    return reinterpret_cast<const Stored*>(values_ + slot * kValuePitch);
  }
  // The slot of a group kTileGroups later.
  __device__ int later(int slot) const {
    slot += kTileGroups;
    return slot < slots_ ? slot : slot - slots_;
  }

 private:
  static constexpr int kBarriers = kMostSlots / kTileGroups;
  static constexpr int kGroupBytes = kGroup * Shape::kDim * sizeof(Stored);
  // For DecodeTile: eight lanes read 64 bytes in rows of two groups, or 32 in rows of four.
  static constexpr int kKeyPitch = kGroupBytes + 64, kValuePitch = kGroupBytes + 32;
  static constexpr int kSlotBytes = kKeyPitch + kValuePitch;
  static_assert(kGroupBytes % 128 == 0);

  __device__ static int warp() { return threadIdx.x / kWarp; }
  __device__ static int lane() { return threadIdx.x % kWarp; }
  // A tile's, and later that of the tile kBarriers behind it. As a ring has no more slots than
  // that, a tile's first group is copied when all warps have seen the barrier's last phase.
  __device__ uint32_t barrier(int operand, int tile) const {
    return barriers_ + (operand * kBarriers + tile % kBarriers) * sizeof(uint64_t);
  }
  __device__ void await(int operand, int tile) const {
    wait_barrier(barrier(operand, tile), tile / kBarriers % 2);
  }
  // The next so many groups, each by a lane. With its first group a tile's bytes are announced.
  __device__ void copy(int count) {
    const int group = next_ + lane(), tile = group / kTileGroups;
    const bool copies = lane() < count && group < num_groups_;
    if (copies && group % kTileGroups == 0) {
      arrive_and_expect(barrier(warp(), tile), min(kTileGroups, num_groups_ - group) * kGroupBytes);
    }
    __syncwarp();
    if (copies) {
      const int place = slot_ + lane(), slot = place < slots_ ? place : place - slots_;
      const unsigned char* to =
          warp() == 0 ? keys_ + slot * kKeyPitch : values_ + slot * kValuePitch;
      stream_bytes(shared_address(to), from_ + static_cast<int64_t>(found_) * 8, kGroupBytes,
                   barrier(warp(), tile));
    }
  }

  uint32_t barriers_;
  unsigned char *keys_, *values_;
  int slots_, num_groups_;
  // Of the first two warps.
  int next_, slot_;  // group to copy, and its slot
  const Stored* from_;
  uint32_t found_;  // the group next_ + lane()
};

}  // namespace braid::cuda

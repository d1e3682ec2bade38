#pragma once

#include <cstdint>
#include <span>

#include "ops/gated_delta/recurrent_store.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {

// RecurrentRows as kernels see them.
struct DeviceRecurrentRows {
  int32_t first_row;
  int32_t num_rows;
  int32_t slot;
  int32_t num_replayed;
  int32_t fresh;
  int32_t logged;
};

// The sequences in device memory; the layers of a step share one copy.
inline const DeviceRecurrentRows* recurrent_table(StreamState& state,
                                                  std::span<const RecurrentRows> sequences) {
  return static_cast<const DeviceRecurrentRows*>(state.table(
      sequences.data(), sequences.size() * sizeof(DeviceRecurrentRows), [&](std::byte* out) {
        auto* rows = reinterpret_cast<DeviceRecurrentRows*>(out);
        for (const RecurrentRows& r : sequences) {
          *rows++ = {static_cast<int32_t>(r.first_row),
                     static_cast<int32_t>(r.num_rows),
                     r.slot,
                     r.num_replayed,
                     r.fresh,
                     r.logged};
        }
      }));
}

}  // namespace braid::cuda

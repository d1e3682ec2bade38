#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "ops/attention/paged_kv.h"
#include "tensor/cuda/stream_state.h"

namespace braid::cuda {

// SequenceRows as kernels see them.
struct DeviceSequence {
  int32_t first_row;
  int32_t num_rows;
  int32_t first_position;
  int32_t num_pages;
  int32_t first_entry;  // of the sequence's rows among those of all, one after another
};

// The sequences of a step with their pages and rows in one piece of device memory; the layers of a
// step share one copy. Its size depends on the numbers of sequences and rows, and on the longest
// list of pages rounded up to a power of two, so that a graph finds the tables of steps of one
// shape in the same places.
struct KvTable {
  const DeviceSequence* sequences;
  const int32_t* row_sequences;  // [num_rows]: the sequence of each row
  const int32_t* pages;          // [sequences, page_stride]
  int page_stride;
  int num_rows;

  static KvTable upload(StreamState& state, std::span<const SequenceRows> sequences) {
    constexpr size_t kLeastPages = 8;
    size_t num_rows = 0, most_pages = kLeastPages;
    for (const SequenceRows& s : sequences) {
      num_rows += static_cast<size_t>(s.num_rows);
      most_pages = std::max(most_pages, s.pages.size());
    }
    const size_t stride = std::bit_ceil(most_pages);
    const size_t rows_at = sequences.size() * sizeof(DeviceSequence);
    const size_t pages_at = rows_at + num_rows * sizeof(int32_t);
    const size_t bytes = pages_at + sequences.size() * stride * sizeof(int32_t);
    const auto fill = [&](std::byte* out) {
      auto* device_sequences = reinterpret_cast<DeviceSequence*>(out);
      auto* row_sequences = reinterpret_cast<int32_t*>(out + rows_at);
      auto* pages = reinterpret_cast<int32_t*>(out + pages_at);
      int32_t entry = 0;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const SequenceRows& s = sequences[i];
        device_sequences[i] = {static_cast<int32_t>(s.first_row), static_cast<int32_t>(s.num_rows),
                               static_cast<int32_t>(s.first_position),
                               static_cast<int32_t>(s.pages.size()), entry};
        std::fill_n(row_sequences + entry, s.num_rows, static_cast<int32_t>(i));
        std::memcpy(pages + i * stride, s.pages.data(), s.pages.size() * sizeof(int32_t));
        entry += static_cast<int32_t>(s.num_rows);
      }
    };
    const auto* base = static_cast<const std::byte*>(state.table(sequences.data(), bytes, fill));
    return {reinterpret_cast<const DeviceSequence*>(base),
            reinterpret_cast<const int32_t*>(base + rows_at),
            reinterpret_cast<const int32_t*>(base + pages_at), static_cast<int>(stride),
            static_cast<int>(num_rows)};
  }
};

}  // namespace braid::cuda

#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
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
  int32_t first_page;   // of its pages in the table, in words from the table's start
};

// The sequences of a step with their rows and pages in one piece of device memory; the layers of a
// step share one copy. Kernels find everything from what the table holds, so that a recorded graph
// serves all steps whose tables are of one size and have room for as many pages a sequence. For a
// number of sequences with one row each, a power of two is the size, twice as large for each
// doubling of the longest list of pages.
struct KvTable {
  const DeviceSequence* sequences;
  const int32_t* row_sequences;  // [num_rows]: the sequence of each row
  int num_rows;
  int page_capacity;  // no sequence has more pages; a power of two

#ifdef __CUDACC__
  __device__ const int32_t* pages(const DeviceSequence& sequence) const {
    return reinterpret_cast<const int32_t*>(sequences) + sequence.first_page;
  }
  // The same of sequence i, without a look at it.
  __device__ const int32_t* pages(int i) const {
    return row_sequences + num_rows + static_cast<int64_t>(i) * page_capacity;
  }
#endif

  static KvTable upload(StreamState& state, std::span<const SequenceRows> sequences) {
    constexpr size_t kLeastPages = 8, kWord = sizeof(int32_t);
    constexpr size_t kLeastBytes = 256;  // any table has room for so many
    const size_t places = std::bit_ceil(sequences.size());
    size_t num_rows = 0, most_pages = std::max(kLeastPages, kLeastBytes / (2 * places * kWord));
    for (const SequenceRows& s : sequences) {
      num_rows += static_cast<size_t>(s.num_rows);
      most_pages = std::max(most_pages, s.pages.size());
    }
    const size_t capacity = std::bit_ceil(most_pages);
    const size_t rows_at = sequences.size() * sizeof(DeviceSequence) / kWord;
    const size_t pages_at = rows_at + num_rows;
    // With one row each, what is not pages takes no more than half of this.
    const size_t decode_bytes = 2 * places * capacity * kWord;
    const size_t bytes = std::max(decode_bytes, (pages_at + sequences.size() * capacity) * kWord);
    const auto fill = [&](std::byte* out) {
      auto* device_sequences = reinterpret_cast<DeviceSequence*>(out);
      auto* words = reinterpret_cast<int32_t*>(out);
      size_t entry = 0, page = pages_at;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const SequenceRows& s = sequences[i];
        device_sequences[i] = {static_cast<int32_t>(s.first_row),
                               static_cast<int32_t>(s.num_rows),
                               static_cast<int32_t>(s.first_position),
                               static_cast<int32_t>(s.pages.size()),
                               static_cast<int32_t>(entry),
                               static_cast<int32_t>(page)};
        std::fill_n(words + rows_at + entry, s.num_rows, static_cast<int32_t>(i));
        std::copy(s.pages.begin(), s.pages.end(), words + page);
        entry += static_cast<size_t>(s.num_rows);
        page += capacity;
      }
    };
    const auto* words = static_cast<const int32_t*>(state.table(sequences.data(), bytes, fill));
    return {reinterpret_cast<const DeviceSequence*>(words), words + rows_at,
            static_cast<int>(num_rows), static_cast<int>(capacity)};
  }
};

}  // namespace braid::cuda

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace braid {

// Rows of hidden states that must outlive the step they come from, in the stream's memory: two
// halves, of which one is filled until those that are still needed move to the other. Used by one
// thread.
class HiddenRows {
 public:
  // capacity: of rows that are needed at a time.
  HiddenRows(Stream& stream, int64_t width, int64_t capacity);
  // What it allocates.
  static int64_t size_bytes(int64_t width, int64_t capacity) {
    return 2 * capacity * width * static_cast<int64_t>(sizeof(float));
  }

  // Makes room for `count` rows more. Rows that nobody names may be forgotten, and the others
  // renumbered: `live` lists where the numbers are kept.
  void make_room(int64_t count, std::span<std::vector<int32_t>* const> live);
  // Copies rows [first, first + count) of `from`, for which there is room; puts their numbers
  // behind the others.
  void append(const TensorView& from, int64_t first, int64_t count, std::vector<int32_t>& numbers);
  // to[i] = row numbers[i]
  void gather(std::span<const int32_t> numbers, const TensorView& to) const;

  int64_t capacity() const { return rows_.shape().dim(0) / 2; }

 private:
  TensorView half() const { return rows_.view().rows(first_, capacity()); }

  Stream& stream_;
  Tensor rows_;        // [2 · capacity, width]
  int64_t first_ = 0;  // of the half in use
  int64_t size_ = 0;   // rows of it
};

}  // namespace braid

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace braid {

// Rows of hidden states that must outlive the step they come from, in the stream's memory. Used by
// one thread.
class HiddenRows {
 public:
  HiddenRows(Stream& stream, int64_t width, int64_t capacity);

  // Makes room for `count` rows more. Rows that nobody names are forgotten, and the others are
  // renumbered: `live` lists where the numbers are kept.
  void make_room(int64_t count, std::span<std::vector<int32_t>* const> live);
  // Copies rows [first, first + count) of `from`, for which there is room; puts their numbers
  // behind the others.
  void append(const TensorView& from, int64_t first, int64_t count, std::vector<int32_t>& numbers);
  // to[i] = row numbers[i]
  void gather(std::span<const int32_t> numbers, const TensorView& to) const;

  int64_t capacity() const { return rows_.shape().dim(0); }

 private:
  Stream& stream_;
  Tensor rows_;  // [capacity, width]
  int64_t size_ = 0;
};

}  // namespace braid

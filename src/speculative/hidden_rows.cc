#include "speculative/hidden_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "ops/elementwise/elementwise.h"

namespace braid {

HiddenRows::HiddenRows(Stream& stream, int64_t width, int64_t capacity)
    : stream_(stream), rows_(DType::kF32, {capacity, width}, stream.device()) {}

void HiddenRows::make_room(int64_t count, std::span<std::vector<int32_t>* const> live) {
  if (size_ + count <= capacity()) return;
  std::vector<int32_t> kept;
  for (std::vector<int32_t>* numbers : live) {
    for (int32_t& number : *numbers) {
      kept.push_back(number);
      number = static_cast<int32_t>(kept.size() - 1);
    }
  }
  size_ = static_cast<int64_t>(kept.size());
  // Half of it free, so that this happens seldom.
  const int64_t capacity = std::max(this->capacity(), 2 * (size_ + count));
  Tensor rows(DType::kF32, {capacity, rows_.shape().dim(1)}, stream_.device());
  if (size_ > 0) gather_rows(stream_, rows_.view(), kept, rows.view().rows(0, size_));
  stream_.synchronize();  // before the memory goes
  rows_ = std::move(rows);
}

void HiddenRows::append(const TensorView& from, int64_t first, int64_t count,
                        std::vector<int32_t>& numbers) {
  BRAID_CHECK(size_ + count <= capacity(), "{} rows more beside {} of {}", count, size_,
              capacity());
  if (count == 0) return;
  std::vector<int32_t> list(static_cast<size_t>(count));
  std::iota(list.begin(), list.end(), static_cast<int32_t>(first));
  gather_rows(stream_, from, list, rows_.view().rows(size_, count));
  std::iota(list.begin(), list.end(), static_cast<int32_t>(size_));
  numbers.insert(numbers.end(), list.begin(), list.end());
  size_ += count;
}

void HiddenRows::gather(std::span<const int32_t> numbers, const TensorView& to) const {
  gather_rows(stream_, rows_.view(), numbers, to);
}

}  // namespace braid

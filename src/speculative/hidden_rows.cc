#include "speculative/hidden_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "ops/elementwise/elementwise.h"

namespace braid {

HiddenRows::HiddenRows(Stream& stream, int64_t width, int64_t capacity)
    : stream_(stream), rows_(DType::kF32, {2 * capacity, width}, stream.device()) {}

void HiddenRows::make_room(int64_t count, std::span<std::vector<int32_t>* const> live) {
  if (size_ + count <= capacity()) return;
  std::vector<int32_t> kept;  // rows of the half in use
  for (std::vector<int32_t>* numbers : live) {
    for (int32_t& number : *numbers) {
      kept.push_back(number);
      number = static_cast<int32_t>(kept.size() - 1);
    }
  }
  const int64_t num_kept = static_cast<int64_t>(kept.size());
  BRAID_CHECK(num_kept + count <= capacity(), "{} rows are needed beside {} of {}", num_kept, count,
              capacity());
  const TensorView from = half();
  first_ = capacity() - first_;
  if (num_kept > 0) gather_rows(stream_, from, kept, half().rows(0, num_kept));
  size_ = num_kept;
}

void HiddenRows::append(const TensorView& from, int64_t first, int64_t count,
                        std::vector<int32_t>& numbers) {
  BRAID_CHECK(size_ + count <= capacity(), "{} rows more beside {} of {}", count, size_,
              capacity());
  if (count == 0) return;
  std::vector<int32_t> list(static_cast<size_t>(count));
  std::iota(list.begin(), list.end(), static_cast<int32_t>(first));
  gather_rows(stream_, from, list, half().rows(size_, count));
  std::iota(list.begin(), list.end(), static_cast<int32_t>(size_));
  numbers.insert(numbers.end(), list.begin(), list.end());
  size_ += count;
}

void HiddenRows::gather(std::span<const int32_t> numbers, const TensorView& to) const {
  gather_rows(stream_, half(), numbers, to);
}

}  // namespace braid

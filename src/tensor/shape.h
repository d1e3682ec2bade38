#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/check.h"

namespace braid {

// Up to four sizes, outermost first, stored inline.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
    BRAID_CHECK(rank_ <= kMaxRank, "rank {}", rank_);
    for (int i = 0; i < rank_; ++i) sizes_[i] = sizes[i];
  }

  int rank() const { return rank_; }
  // dim(-1) is the innermost.
  int64_t dim(int i) const {
    const int index = i < 0 ? i + rank_ : i;
    BRAID_CHECK(index >= 0 && index < rank_, "dimension {} of rank {}", i, rank_);
    return sizes_[index];
  }
  int64_t operator[](int i) const { return dim(i); }
  int64_t num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= sizes_[i];
    return n;
  }
  std::span<const int64_t> sizes() const { return {sizes_.data(), static_cast<size_t>(rank_)}; }
  bool operator==(const Shape& other) const {
    return std::equal(sizes().begin(), sizes().end(), other.sizes().begin(), other.sizes().end());
  }

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

// "[8, 256]"
std::string to_string(const Shape& shape);

}  // namespace braid

#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "tensor/tensor_view.h"

namespace braid {

// A list of row numbers in the memory of the host or of a device; refers to elements owned
// elsewhere. Ops of a device take either: a list of the host's is copied to it first.
class IndexList {
 public:
  IndexList() = default;
  template <typename Range>
  requires std::convertible_to<const Range&, std::span<const int32_t>> IndexList(const Range& list)
      : IndexList(std::span<const int32_t>(list), Device{}) {}  // NOLINT
  IndexList(std::span<const int32_t> list, Device device) : list_(list), device_(device) {}
  // view: int32, of one dimension.
  IndexList(const TensorView& view)  // NOLINT: implicit by design
      : IndexList(view.span<int32_t>(), view.device()) {}

  int64_t size() const { return static_cast<int64_t>(list_.size()); }
  Device device() const { return device_; }
  const int32_t* data() const { return list_.data(); }

  // What it holds, if that is on the host.
  std::span<const int32_t> on_host() const {
    BRAID_CHECK(device_.is_cpu(), "a list in the memory of {}", device_name(device_));
    return list_;
  }

 private:
  std::span<const int32_t> list_;
  Device device_;
};

}  // namespace braid

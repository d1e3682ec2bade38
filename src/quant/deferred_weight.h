#pragma once

#include <memory>

#include "quant/weight.h"

namespace braid {

// Makes the payload of a weight where it is wanted.
class PayloadMaker {
 public:
  virtual ~PayloadMaker() = default;
  // Writes the whole payload to memory of `device`, and waits until it is there.
  virtual void make(std::byte* to, Device device) const = 0;
};

// A weight that is described only: its data are address space, which reads as zeros, until whoever
// wants them asks its maker. Models that compute on another device are bound to such weights, so
// that the host never holds what it only passes on.
Weight defer_weight(const QuantFormat& format, const Shape& shape,
                    std::shared_ptr<const PayloadMaker> maker);

// Of a weight that defer_weight() made, whole; null for any other, which has its data.
std::shared_ptr<const PayloadMaker> payload_maker(const Weight& weight);

}  // namespace braid

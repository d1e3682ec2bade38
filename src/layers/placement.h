#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <utility>

#include "quant/weight.h"
#include "tensor/tensor.h"

namespace braid {

// Moves a model's parameters to a device. Weights that share their payload (a tied head) still do
// so afterwards. The host's copies stay until the placement ends.
class Placement {
 public:
  explicit Placement(Device device) : device_(device) {}

  Device device() const { return device_; }
  void place(Weight& weight);
  void place(Tensor& tensor);
  // Puts matrices of one format and width one behind the other, so that they can be multiplied as
  // one. Others are placed singly; empty ones are passed over.
  void place_joined(std::initializer_list<Weight*> weights);
  // Anything with a function place(Placement&).
  template <typename Layer>
  requires requires(Layer& layer, Placement& placement) { layer.place(placement); }
  void place(Layer& layer) { layer.place(*this); }
  template <typename... Parameters>
  requires(sizeof...(Parameters) > 1) void place(Parameters&... parameters) {
    (place(parameters), ...);
  }

 private:
  Device device_;
  struct Placed {
    Weight there;
    std::shared_ptr<const void> host_payload;  // kept, so that nothing else takes its address
  };

  Weight upload(const Weight& weight) const;
  Weight pack(const Weight& weight, std::shared_ptr<Buffer> memory) const;

  std::map<std::pair<const std::byte*, int64_t>, Placed> placed_;  // by the host's payload
};

}  // namespace braid

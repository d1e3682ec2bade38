#include "quant/deferred_weight.h"

#include <utility>

#include "base/check.h"
#include "tensor/buffer.h"

namespace braid {
namespace {

// The deleter of a deferred weight's owner, by which such weights are told from others.
struct DeferredOwner {
  std::shared_ptr<const Buffer> space;
  std::shared_ptr<const PayloadMaker> maker;

  void operator()(const void*) const {}
};

}  // namespace

Weight defer_weight(const QuantFormat& format, const Shape& shape,
                    std::shared_ptr<const PayloadMaker> maker) {
  Weight weight{.format = &format, .shape = shape};
  auto space = std::make_shared<const Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
  weight.data = space->data();
  weight.owner = std::shared_ptr<const void>(
      weight.data, DeferredOwner{.space = std::move(space), .maker = std::move(maker)});
  return weight;
}

std::shared_ptr<const PayloadMaker> payload_maker(const Weight& weight) {
  const auto* owner = std::get_deleter<DeferredOwner>(weight.owner);
  if (owner == nullptr) return nullptr;
  BRAID_CHECK(weight.data == owner->space->data() &&
                  static_cast<size_t>(weight.size_bytes()) == owner->space->size_bytes(),
              "a part of a weight that is not there yet");
  return owner->maker;
}

}  // namespace braid

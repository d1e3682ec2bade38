#include "layers/placement.h"

#include "base/error.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

void check_format(const Weight& weight) {
  if (weight.format->id > kLastDeviceFormat) {
    throw Error("weights of {} are computed on the CPU only so far; use --device cpu",
                weight.format->name);
  }
}

}  // namespace

void Placement::place(Weight& weight) {
  if (weight.empty() || weight.device == device_) return;
  BRAID_CHECK(weight.device.is_cpu(), "a weight on {}", device_name(weight.device));
  check_format(weight);
  const auto key = std::pair(weight.data, weight.size_bytes());
  Placed& there = placed_[key];
  if (there.memory == nullptr) {
    there.memory = std::make_shared<Buffer>(static_cast<size_t>(key.second), device_);
    there.host_payload = weight.owner;
    cuda::copy_to_device(there.memory->data(), weight.data, there.memory->size_bytes(),
                         device_.index);
  }
  weight.data = there.memory->data();
  weight.owner = there.memory;
  weight.device = device_;
}

void Placement::place_joined(std::initializer_list<Weight*> weights) {
  const Weight* first = nullptr;
  bool alike = true;
  int64_t size_bytes = 0;
  for (const Weight* weight : weights) {
    if (weight->empty()) continue;
    if (!device_.is_cpu()) check_format(*weight);
    if (first == nullptr) first = weight;
    alike = alike && weight->format == first->format && !weight->format->panels() &&
            weight->shape.rank() == 2 && weight->cols() == first->cols() && weight->device.is_cpu();
    size_bytes += weight->size_bytes();
  }
  if (first == nullptr || !alike || device_.is_cpu()) {
    for (Weight* weight : weights) place(*weight);
    return;
  }
  const auto memory = std::make_shared<Buffer>(static_cast<size_t>(size_bytes), device_);
  int64_t offset = 0;
  for (Weight* weight : weights) {
    if (weight->empty()) continue;
    std::byte* const there = memory->data() + offset;
    cuda::copy_to_device(there, weight->data, static_cast<size_t>(weight->size_bytes()),
                         device_.index);
    offset += weight->size_bytes();
    weight->data = there;
    weight->owner = memory;
    weight->device = device_;
  }
}

void Placement::place(Tensor& tensor) {
  const TensorView from = tensor.view();
  if (from.empty() || from.device() == device_) return;
  Tensor there(from.dtype(), from.shape(), device_);
  cuda::copy_to_device(static_cast<std::byte*>(there.view().raw()), from.raw(),
                       static_cast<size_t>(from.num_elements()) * dtype_bytes(from.dtype()),
                       device_.index);
  tensor = std::move(there);
}

}  // namespace braid

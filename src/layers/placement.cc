#include "layers/placement.h"

#include "base/error.h"
#include "quant/cuda/pack_tiles.h"
#include "quant/deferred_weight.h"
#include "quant/device_tiles.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

void check_format(const Weight& weight) {
  if (weight.format->panels()) {
    throw Error(
        "weights of {} are laid out for the CPU; with --device cuda give the file that was packed",
        weight.format->name);
  }
}

void write_payload(const Weight& weight, std::byte* to, Device device) {
  if (const auto maker = payload_maker(weight)) {
    maker->make(to, device);
  } else {
    cuda::copy_to_device(to, weight.data, static_cast<size_t>(weight.size_bytes()), device.index);
  }
}

}  // namespace

// Copies a weight of the host, in the layout that the device's kernels like best.
Weight Placement::upload(const Weight& weight) const {
  const auto memory = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), device_);
  write_payload(weight, memory->data(), device_);
  return pack(weight, memory);
}

Weight Placement::pack(const Weight& weight, std::shared_ptr<Buffer> memory) const {
  Weight there = weight;
  there.data = memory->data();
  there.owner = std::move(memory);
  there.device = device_;
  return cuda::pack_tiles(there);
}

void Placement::place(Weight& weight) {
  if (weight.empty() || weight.device == device_) return;
  BRAID_CHECK(weight.device.is_cpu(), "a weight on {}", device_name(weight.device));
  check_format(weight);
  Placed& known = placed_[{weight.data, weight.size_bytes()}];
  if (known.there.empty()) known = {upload(weight), weight.owner};
  const Shape shape = weight.shape;
  weight = known.there;
  weight.shape = shape;
}

void Placement::place_joined(std::initializer_list<Weight*> weights) {
  const Weight* first = nullptr;
  bool alike = !device_.is_cpu();
  int64_t rows = 0;
  for (const Weight* weight : weights) {
    if (weight->empty()) continue;
    if (first == nullptr) first = weight;
    alike = alike && weight->format == first->format && !weight->format->panels() &&
            weight->shape.rank() == 2 && weight->cols() == first->cols() &&
            weight->device.is_cpu() && weight->rows() % kTileRows == 0;
    rows += weight->rows();
  }
  if (!alike || first == nullptr) {
    for (Weight* weight : weights) place(*weight);
    return;
  }
  check_format(*first);
  Weight joined{.format = first->format, .shape = {rows, first->cols()}};
  const auto memory = std::make_shared<Buffer>(static_cast<size_t>(joined.size_bytes()), device_);
  int64_t offset = 0;
  for (const Weight* weight : weights) {
    if (weight->empty()) continue;
    write_payload(*weight, memory->data() + offset, device_);
    offset += weight->size_bytes();
  }
  joined = pack(joined, memory);
  int64_t begin = 0;
  for (Weight* weight : weights) {
    if (weight->empty()) continue;
    const int64_t count = weight->rows();
    *weight = joined.slice_rows(begin, count);
    begin += count;
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

#include "cache/recurrent_slots.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/cuda/device_memory.h"

namespace braid {

RecurrentSlots::RecurrentSlots(const RecurrentGroup& group, int64_t max_logged_tokens,
                               Device device)
    : shape_(group.shape), device_(device) {
  const RecurrentState& s = shape_;
  const int64_t slots = group.num_slots;
  const auto tensor = [&](const Shape& shape) {
    size_bytes_ += shape.num_elements() * dtype_bytes(DType::kF32);
    return Tensor(DType::kF32, shape, device);
  };
  for (size_t i = 0; i < group.layers.size(); ++i) {
    Layer layer;
    layer.states = tensor({slots, s.value_heads, s.value_dim, s.key_dim});
    layer.conv_rows = tensor({slots, s.conv_width - 1 + max_logged_tokens, s.conv_channels});
    layer.logged_keys = tensor({slots, max_logged_tokens, s.key_heads, s.key_dim});
    layer.logged_updates = tensor({slots, max_logged_tokens, s.value_heads, s.value_dim});
    layer.logged_decays = tensor({slots, max_logged_tokens, s.value_heads});
    layers_.push_back(std::move(layer));
  }
}

RecurrentLayer RecurrentSlots::layer(int64_t index) const {
  BRAID_CHECK(index >= 0 && index < static_cast<int64_t>(layers_.size()), "layer {} of {}", index,
              layers_.size());
  const Layer& layer = layers_[index];
  return {.states = layer.states,
          .conv_rows = layer.conv_rows,
          .logged_keys = layer.logged_keys,
          .logged_updates = layer.logged_updates,
          .logged_decays = layer.logged_decays};
}

// Calls visit(pointer, count) for each stretch that a sequence owns.
template <typename Visit>
void RecurrentSlots::for_each_row(int32_t slot, int32_t num_replayed, const Visit& visit) const {
  const RecurrentState& s = shape_;
  for (const Layer& layer : layers_) {
    const auto rows = [&](const Tensor& tensor, int64_t count) {
      if (count > 0) visit(tensor.view().row<float>(slot), count);
    };
    rows(layer.states, s.value_heads * s.value_dim * s.key_dim);
    rows(layer.conv_rows, (s.conv_width - 1 + num_replayed) * s.conv_channels);
    rows(layer.logged_keys, num_replayed * s.key_heads * s.key_dim);
    rows(layer.logged_updates, num_replayed * s.value_heads * s.value_dim);
    rows(layer.logged_decays, num_replayed * s.value_heads);
  }
}

void RecurrentSlots::save(int32_t slot, int32_t num_replayed, std::vector<float>& values) const {
  for_each_row(slot, num_replayed, [&](const float* from, int64_t count) {
    if (device_.is_cpu()) {
      values.insert(values.end(), from, from + count);
      return;
    }
    values.resize(values.size() + static_cast<size_t>(count));
    cuda::copy_to_host(values.data() + values.size() - count,
                       reinterpret_cast<const std::byte*>(from), count * sizeof(float),
                       device_.index);
  });
}

void RecurrentSlots::load(int32_t slot, int32_t num_replayed, const std::vector<float>& values,
                          size_t& offset) {
  for_each_row(slot, num_replayed, [&](float* to, int64_t count) {
    BRAID_CHECK(offset + count <= values.size(), "a snapshot of {} values", values.size());
    if (device_.is_cpu()) {
      std::copy_n(values.begin() + offset, count, to);
    } else {
      cuda::copy_to_device(reinterpret_cast<std::byte*>(to), values.data() + offset,
                           count * sizeof(float), device_.index);
    }
    offset += count;
  });
}

}  // namespace braid

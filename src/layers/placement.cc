#include "layers/placement.h"

#include <algorithm>

#include "base/error.h"
#include "layers/layer_streamer.h"
#include "quant/cuda/pack_tiles.h"
#include "quant/deferred_weight.h"
#include "quant/device_tiles.h"
#include "quant/tiled_weight.h"
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

// From this size pinned buffers pay.
constexpr int64_t kLargeBytes = int64_t{4} << 20;

// Of a weight in a block of LayerStreamer's, with a gap behind it: weights that follow each other
// would be multiplied as one.
int64_t block_size(const Weight& weight) {
  constexpr int64_t kUnit = LayerStreamer::kAlignment;
  return (weight.size_bytes() + 2 * kUnit - 1) / kUnit * kUnit;
}

std::vector<LayerStreamer::Layer> streamed_layers(const std::vector<int64_t>& on_host,
                                                  const PlacementCount& count) {
  std::vector<LayerStreamer::Layer> layers;
  for (const int64_t layer : on_host) {
    layers.push_back({layer, count.layers.at(static_cast<size_t>(layer)).block});
  }
  return layers;
}

}  // namespace

Placement::Placement(Device device, const std::vector<int64_t>& on_host,
                     const PlacementCount& count)
    : device_(device) {
  if (on_host.empty()) return;
  streamer_ = std::make_shared<LayerStreamer>(streamed_layers(on_host, count), device);
}

void Placement::write_payload(const Weight& weight, std::byte* to) {
  const int64_t bytes = weight.size_bytes();
  if (const auto maker = payload_maker(weight)) {
    maker->make(to, device_);
  } else if (bytes < kLargeBytes) {
    cuda::copy_to_device(to, weight.data, static_cast<size_t>(bytes), device_.index);
  } else {
    if (upload_ == nullptr) upload_ = cuda::make_pinned_upload(device_.index);
    upload_->copy(to, weight.data, static_cast<size_t>(bytes));
  }
}

// Copies a weight of the host, in the layout that the device's kernels like best.
Weight Placement::upload(const Weight& weight) {
  const auto memory = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), device_);
  write_payload(weight, memory->data());
  return pack(weight, memory);
}

Weight Placement::pack(const Weight& weight, std::shared_ptr<Buffer> memory) const {
  Weight there = weight;
  there.data = memory->data();
  there.owner = std::move(memory);
  there.device = device_;
  if (upload_ != nullptr && tile_format(*there.format, there.cols()) != nullptr) upload_->finish();
  return cuda::pack_tiles(there);
}

// `weight`: as it comes from the host.
void Placement::count(const Weight& weight) {
  const int64_t rows = cuda::footprint(weight.size_bytes());
  const Weight tiles = in_tile_layout(weight);
  const int64_t bytes = cuda::footprint(tiles.size_bytes());
  count_.bytes += bytes;
  if (tiles.format != weight.format) count_.beside = std::max(count_.beside, rows);
  if (layer_ < 0) return;
  if (std::ssize(count_.layers) <= layer_) count_.layers.resize(static_cast<size_t>(layer_) + 1);
  PlacementCount::Layer& layer = count_.layers[static_cast<size_t>(layer_)];
  layer.bytes += bytes;
  layer.block += block_size(tiles);
}

// Of a layer that stays on the host: there, with its place on the device.
Weight Placement::settle(const Weight& there) {
  const int block = streamer_ != nullptr && layer_ >= 0 ? streamer_->block_of(layer_) : -1;
  if (block < 0) return there;
  if (block != block_) block_bytes_ = 0;
  block_ = block;
  const int64_t begin = block_bytes_;
  block_bytes_ += block_size(there);
  BRAID_CHECK(block_bytes_ <= streamer_->layers()[static_cast<size_t>(block)].bytes,
              "layer {} has more than was counted", layer_);
  if (upload_ != nullptr) upload_->finish();
  cuda::copy_to_host(streamer_->blocks().host(block) + begin, there.data,
                     static_cast<size_t>(there.size_bytes()), device_.index);
  Weight streamed = there;
  streamed.data = streamer_->blocks().slot(block) + begin;
  streamed.owner = streamer_;
  return streamed;
}

void Placement::place(Weight& weight) {
  if (weight.empty() || weight.device == device_) return;
  BRAID_CHECK(weight.device.is_cpu(), "a weight on {}", device_name(weight.device));
  check_format(weight);
  Placed& known = placed_[{weight.data, weight.size_bytes()}];
  if (known.there.empty()) {
    count(weight);
    known = {moves_ ? settle(upload(weight)) : weight, weight.owner};
  }
  if (!moves_) return;
  const Shape shape = weight.shape;
  weight = known.there;
  weight.shape = shape;
}

void Placement::place_joined(std::initializer_list<Weight*> weights) {
  std::vector<Weight*> run;  // of matrices alike
  for (Weight* weight : weights) {
    if (weight->empty()) continue;
    if (!run.empty() && !follows(*run.front(), *weight)) {
      place_run(run);
      run.clear();
    }
    run.push_back(weight);
  }
  place_run(run);
}

bool Placement::follows(const Weight& first, const Weight& next) const {
  const auto suits = [](const Weight& w) {
    return w.device.is_cpu() && !w.format->panels() && w.shape.rank() == 2 &&
           w.rows() % kTileRows == 0;
  };
  return !device_.is_cpu() && next.format == first.format && next.cols() == first.cols() &&
         suits(first) && suits(next);
}

void Placement::place_run(std::span<Weight* const> weights) {
  if (weights.size() < 2) {
    for (Weight* weight : weights) place(*weight);
    return;
  }
  const Weight& first = *weights.front();
  int64_t rows = 0;
  for (const Weight* weight : weights) rows += weight->rows();
  Weight joined{.format = first.format, .shape = {rows, first.cols()}};
  count(joined);
  if (!moves_) return;
  const auto memory = std::make_shared<Buffer>(static_cast<size_t>(joined.size_bytes()), device_);
  int64_t offset = 0;
  for (const Weight* weight : weights) {
    write_payload(*weight, memory->data() + offset);
    offset += weight->size_bytes();
  }
  joined = settle(pack(joined, memory));
  int64_t begin = 0;
  for (Weight* weight : weights) {
    const int64_t count = weight->rows();
    *weight = joined.slice_rows(begin, count);
    begin += count;
  }
}

void Placement::place(Tensor& tensor) {
  const TensorView from = tensor.view();
  if (from.empty() || from.device() == device_) return;
  count_.bytes += cuda::footprint(from.num_elements() * dtype_bytes(from.dtype()));
  if (!moves_) return;
  Tensor there(from.dtype(), from.shape(), device_);
  cuda::copy_to_device(static_cast<std::byte*>(there.view().raw()), from.raw(),
                       static_cast<size_t>(from.num_elements()) * dtype_bytes(from.dtype()),
                       device_.index);
  tensor = std::move(there);
}

}  // namespace braid

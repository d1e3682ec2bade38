#include "layers/layer_streamer.h"

#include <algorithm>
#include <utility>

namespace braid {
namespace {

std::vector<size_t> sizes_of(const std::vector<LayerStreamer::Layer>& layers) {
  std::vector<size_t> sizes;
  for (const LayerStreamer::Layer& layer : layers)
    sizes.push_back(static_cast<size_t>(layer.bytes));
  return sizes;
}

}  // namespace

LayerStreamer::LayerStreamer(std::vector<Layer> layers, Device device)
    : layers_(std::move(layers)),
      blocks_(cuda::make_host_blocks(sizes_of(layers_), kSlots, device.index)) {}

int LayerStreamer::block_of(int64_t layer) const {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), layer,
                                      [](const Layer& a, int64_t b) { return a.layer < b; });
  if (found == layers_.end() || found->layer != layer) return -1;
  return static_cast<int>(found - layers_.begin());
}

void LayerStreamer::begin_layer(const StepContext& step, int64_t layer) {
  if (layer == step.first_layer()) {
    const auto before = [&](int64_t end) {
      return static_cast<int>(std::count_if(layers_.begin(), layers_.end(),
                                            [&](const Layer& each) { return each.layer < end; }));
    };
    blocks_->begin(step.stream.cuda(), before(layer),
                   before(step.end_layer(layers_.back().layer + 1)));
  }
  if (const int block = block_of(layer); block >= 0) blocks_->wait(step.stream.cuda(), block);
}

void LayerStreamer::end_layer(const StepContext& step, int64_t layer) {
  if (const int block = block_of(layer); block >= 0) blocks_->release(step.stream.cuda(), block);
}

}  // namespace braid

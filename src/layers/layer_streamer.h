#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layers/step_context.h"
#include "tensor/cuda/host_blocks.h"

namespace braid {

// Layers whose matrices stay in pinned host memory and come to a CUDA device for each step, ahead
// of their use. Kernels find them where they would find others, so results are the same: to the bit
// on a deterministic stream, otherwise to rounding. Models that have such layers serve one stream
// at a time.
class LayerStreamer {
 public:
  struct Layer {
    int64_t layer = 0;
    int64_t bytes = 0;  // of its matrices, each at a multiple of kAlignment
  };
  static constexpr int64_t kAlignment = 256;
  // While one is computed with, the next is copied.
  static constexpr int kSlots = 2;

  // `layers`: ascending.
  LayerStreamer(std::vector<Layer> layers, Device device);

  // Of a layer that stays on the host: its block. Otherwise -1.
  int block_of(int64_t layer) const;
  const std::vector<Layer>& layers() const { return layers_; }
  cuda::HostBlocks& blocks() { return *blocks_; }

  // Called before and after each layer of a step is queued, in the order of the layers.
  void begin_layer(const StepContext& step, int64_t layer);
  void end_layer(const StepContext& step, int64_t layer);

 private:
  std::vector<Layer> layers_;
  std::unique_ptr<cuda::HostBlocks> blocks_;
};

}  // namespace braid

#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quant/weight.h"
#include "tensor/cuda/pinned_upload.h"
#include "tensor/tensor.h"

namespace braid {

class LayerStreamer;

// Device memory of what was placed (bytes, as allocations count).
struct PlacementCount {
  int64_t bytes = 0;
  // The most that was taken beside it at a time, while one weight was laid out.
  int64_t beside = 0;
  // By layer: of its matrices, which `bytes` includes; and as one block of a LayerStreamer.
  struct Layer {
    int64_t bytes = 0;
    int64_t block = 0;
  };
  std::vector<Layer> layers;
};

// Moves a model's parameters to a device, or only adds up what they would take there. Weights that
// share their payload (a tied head) still do so afterwards. The host's copies stay until the
// placement ends, and all is there once it has ended.
class Placement {
 public:
  // Moves everything.
  explicit Placement(Device device) : device_(device) {}
  // Moves nothing: counted() tells what parameters would take.
  static Placement counting(Device device) {
    Placement placement(device);
    placement.moves_ = false;
    return placement;
  }
  // Leaves the matrices of these layers (ascending) on the host, from where streamer() brings them
  // for each step; `count`: of all layers, as counted before.
  Placement(Device device, const std::vector<int64_t>& on_host, const PlacementCount& count);

  Device device() const { return device_; }
  const PlacementCount& counted() const { return count_; }
  // Null if all layers are on the device.
  const std::shared_ptr<LayerStreamer>& streamer() const { return streamer_; }

  // What is placed from now on belongs to the next layer; after the last one, to none.
  void begin_layer() { layer_ = next_layer_++; }
  void end_layers() { layer_ = -1; }
  // Waits until all that was placed so far is there.
  void finish() {
    if (upload_ != nullptr) upload_->finish();
  }

  void place(Weight& weight);
  void place(Tensor& tensor);
  // Puts neighbours of one format and width one behind the other, so that they can be multiplied as
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
  bool moves_ = true;
  PlacementCount count_;
  std::shared_ptr<LayerStreamer> streamer_;
  int64_t layer_ = -1, next_layer_ = 0;
  int block_ = -1;           // the last that was filled
  int64_t block_bytes_ = 0;  // of it
  struct Placed {
    Weight there;
    std::shared_ptr<const void> host_payload;  // kept, so that nothing else takes its address
  };

  bool follows(const Weight& first, const Weight& next) const;
  void place_run(std::span<Weight* const> weights);
  void write_payload(const Weight& weight, std::byte* to);
  Weight upload(const Weight& weight);
  Weight pack(const Weight& weight, std::shared_ptr<Buffer> memory) const;
  void count(const Weight& weight);
  Weight settle(const Weight& there);

  std::map<std::pair<const std::byte*, int64_t>, Placed> placed_;  // by the host's payload
  std::unique_ptr<cuda::PinnedUpload> upload_;
};

}  // namespace braid

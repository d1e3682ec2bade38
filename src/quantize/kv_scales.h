#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention/paged_kv.h"
#include "quantize/magnitudes.h"
#include "tensor/host_copy.h"
#include "tensor/stream.h"

namespace braid {

// What was found for a layer that keeps keys and values.
struct KvLayerResult {
  int64_t layer = 0;
  ScaleFit key, value;
};

// Looks at the keys and values that a layer has put into its cache, after head norms and rotary
// embedding.
class KvObserver {
 public:
  // Of as many numbers at a time as the pool has threads, up to kMaxTasks.
  static constexpr int64_t kMaxTasks = 8;
  // What one of these takes at most, on the host.
  static constexpr int64_t kMaxBytes =
      (2 * kMaxTasks + 1) * static_cast<int64_t>(Magnitudes::kNumBins * sizeof(uint64_t));

  // Borrows the stream.
  explicit KvObserver(Stream& stream);

  // Rows from the first position on, whose pages hold all of them; float32 or bfloat16.
  void add(const PagedKv& store, std::span<const SequenceRows> sequences);
  // Throws Error naming the layer if a key or value is not finite.
  KvLayerResult result(int64_t layer) const;

 private:
  struct Page {
    int64_t index = 0;   // in the store
    int64_t tokens = 0;  // of its slots, from the first on
  };
  void add(const TensorView& pages, int64_t first_page, std::vector<Magnitudes>& sums);

  Stream& stream_;
  HostCopy copy_;
  std::vector<Page> pages_;
  std::vector<Magnitudes> keys_, values_;  // by task
};

}  // namespace braid

#include "engine/memory_plan.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "ops/cuda/token_ops.h"
#include "runner/runner.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/cuda/stream_memory.h"

namespace braid {
namespace {

constexpr int64_t kFloat = sizeof(float);
// Of an input of a matrix: the element itself, and what rounding makes of it: a copy with spread
// rows, and beside it a packed one; or codes by block and by token, these twice.
double host_input_bytes(ActivationPrecision precision) {
  switch (precision) {
    case ActivationPrecision::kF32:
      return kFloat + 4;
    case ActivationPrecision::kBF16:
      return kFloat + 4 + 2;
    case ActivationPrecision::kInt8:
      return kFloat + 1.375 + 1 + 2;
  }
  return kFloat + 6;
}
// Of the hidden size, beside inputs and outputs of the layer's matrices: norms of the branches,
// what the experts' shared input is gathered from.
constexpr int64_t kHiddenCopies = 6;
// Views begin at multiples of 64 bytes; lists of the router.
constexpr int64_t kAlignmentBytes = int64_t{256} << 10;

// Scratch of one thread. Attention: queries, results and a tile of keys; Gated DeltaNet: a chunk
// of 64 tokens of a key head with its value heads (ops/attention, ops/gated_delta).
int64_t attention_scratch(int64_t head_dim) {
  const int64_t padded = (head_dim + 15) / 16 * 16;
  return kFloat * (48 * (64 + 3 * padded) + std::max<int64_t>(8 * padded, 64 * 64));
}
int64_t recurrent_scratch(const RecurrentState& state) {
  const int64_t ratio =
      std::max<int64_t>(1, state.value_heads / std::max<int64_t>(1, state.key_heads));
  const int64_t key = state.key_dim + 64, value = state.value_dim + 64;
  return kFloat * (2 * 64 * key + 8 * 64 * ratio + 8 * key + 80 * key + 4 * 64 * 80 + 64 * 32 +
                   ratio * (2 * 64 * value + 2 * key * value) + 4096);
}

struct CacheShape {
  int64_t widest_head = 0;
  std::vector<int64_t> copied;  // elements a token and layer: values apart from keys, convolution
  int64_t scratch = 0;          // bytes a thread
};

CacheShape cache_shape(const CacheLayout& layout) {
  CacheShape shape;
  for (const LayerCache& layer : layout.layers) {
    int64_t copied = 0;
    const auto add_heads = [&](int64_t heads, int64_t head_dim) {
      copied = heads * head_dim;
      shape.widest_head = std::max(shape.widest_head, head_dim);
      shape.scratch = std::max(shape.scratch, attention_scratch(head_dim));
    };
    if (const auto* full = std::get_if<FullKv>(&layer)) {
      add_heads(full->num_kv_heads, full->head_dim);
    } else if (const auto* window = std::get_if<WindowKv>(&layer)) {
      add_heads(window->num_kv_heads, window->head_dim);
    } else if (const auto* state = std::get_if<RecurrentState>(&layer)) {
      copied = state->conv_channels;
      shape.scratch = std::max(shape.scratch, recurrent_scratch(*state));
    }
    shape.copied.push_back(copied);
  }
  return shape;
}

// Of activations in float32 and what rounding adds, apart from what kernels take for themselves.
// input_bytes: of an element that matrices read.
int64_t activation_bytes(const Model& model, const StepSize& step, double input_bytes) {
  const CacheShape cache = cache_shape(model.cache_layout());
  double layer = 0;
  for (int64_t i = 0; i < model.num_layers(); ++i) {
    const LayerInfo info = model.layer_info(i);
    layer = std::max(layer, kFloat * (info.output_elements +
                                      static_cast<double>(cache.copied[static_cast<size_t>(i)])) +
                                input_bytes * info.input_elements);
  }
  layer += static_cast<double>(kFloat * kHiddenCopies * model.hidden_size());
  // Hidden state, two tables of rotations, what the model adds.
  const int64_t shared =
      model.hidden_size() + 2 * cache.widest_head + model.shared_elements_per_token();
  const double head =
      static_cast<double>(step.tokens * kFloat * model.hidden_size()) +
      static_cast<double>(step.logits_rows) *
          (static_cast<double>(kFloat * (model.vocab_size() + model.hidden_size())) +
           input_bytes * static_cast<double>(model.hidden_size()));
  // What a layer takes is free again when the head begins.
  return step.tokens * kFloat * shared +
         static_cast<int64_t>(std::max(layer * static_cast<double>(step.tokens), head)) +
         kAlignmentBytes;
}

class CpuMemory : public DeviceMemory {
 public:
  explicit CpuMemory(int num_threads) : num_threads_(num_threads) {}

  int64_t allocated(int64_t bytes) const override { return bytes; }

  int64_t step_bytes(const Model& model, const StepSize& step) const override {
    return activation_bytes(model, step, input_bytes(step.precision)) +
           num_threads_ * cache_shape(model.cache_layout()).scratch;
  }

  double input_bytes(ActivationPrecision precision) const override {
    return host_input_bytes(precision);
  }

  // Measured with the demo models, whose weights and tokenizers are small: see
  // docs/memory.md.
  void add_fixed(MemoryPlan& plan) const override {
    plan.add(MemoryKind::kFixed, "program and libraries", int64_t{24} << 20);
    plan.add(MemoryKind::kFixed, "threads", num_threads_ * (int64_t{256} << 10));
  }

 private:
  int64_t num_threads_;
};

// Partial results of attention that is split over the keys (ops/attention/cuda): stretches or spans
// of keys for up to so many queries of a sequence and key head. Longer chunks of prompts are not
// split.
constexpr int64_t kMostSplits = 64, kStretchKeys = 64;
constexpr int64_t kMostSplitQueries = 64, kSplitTileQueries = 16;
// Of a row of logits, parts of its summary.
constexpr int64_t kSummaryBytes = 4096;

int64_t split_bytes(const Model& model, const StepSize& step) {
  int64_t most = 0;
  for (const LayerCache& layer : model.cache_layout().layers) {
    const auto add_heads = [&](int64_t kv_heads, int64_t head_dim, int64_t splits) {
      const int64_t queries =
          std::min(kMostSplitQueries * step.sequences, kSplitTileQueries * step.tokens);
      most = std::max(most, kFloat * queries * kv_heads * splits * (head_dim + 2));
    };
    if (const auto* full = std::get_if<FullKv>(&layer)) {
      add_heads(full->num_kv_heads, full->head_dim, kMostSplits);
    } else if (const auto* window = std::get_if<WindowKv>(&layer)) {
      const int64_t stretches = (window->window + kSplitTileQueries) / kStretchKeys + 2;
      add_heads(window->num_kv_heads, window->head_dim, std::min(kMostSplits, stretches));
    }
  }
  return most;
}

// Of an input of a matrix: the element, and what rounding makes of it.
double device_input_bytes(ActivationPrecision precision) {
  switch (precision) {
    case ActivationPrecision::kF32:
      return kFloat;
    case ActivationPrecision::kBF16:
      return kFloat + 2;
    case ActivationPrecision::kInt8:
      return kFloat + 2 + 1.5;
  }
  return kFloat + 4;
}

class CudaMemory : public DeviceMemory {
 public:
  int64_t allocated(int64_t bytes) const override { return cuda::footprint(bytes); }

  // It grows by pieces.
  int64_t workspace(int64_t bytes) const override {
    constexpr int64_t kPiece = cuda::GrowingMemory::kPieceBytes;
    return (bytes + kPiece - 1) / kPiece * kPiece;
  }

  int64_t step_bytes(const Model& model, const StepSize& step) const override {
    return activation_bytes(model, step, input_bytes(step.precision)) + split_bytes(model, step) +
           step.logits_rows * kSummaryBytes + edit_bytes(step.edited_rows, model.vocab_size());
  }

  int64_t edit_bytes(int64_t edited_rows, int64_t vocab_size) const override {
    return cuda::kDrawnEditBytes * edited_rows * vocab_size;
  }

  double input_bytes(ActivationPrecision precision) const override {
    return device_input_bytes(precision);
  }

  void add_fixed(MemoryPlan& plan) const override {
    plan.add(MemoryKind::kFixed, "CUDA context and code", kContextBytes);
  }

  void add_stream(MemoryPlan& plan, const std::string& name) const override {
    plan.add(MemoryKind::kFixed, name + "tables and library workspace",
             cuda::kStreamTableBytes + cuda::kStreamLibraryBytes + (int64_t{2} << 20));
  }

  void add_graphs(MemoryPlan& plan, const std::string& name, const Model& model,
                  const StepSize& step) const override {
    // One for each number of sequences and each length that tables of pages grow to.
    const int64_t graphs = std::min<int64_t>(Runner::kMostGraphs, kTableSizes * step.sequences);
    plan.add(MemoryKind::kFixed, name + "graphs", graphs * model.num_layers() * kGraphLayerBytes);
  }

 private:
  // Measured: see docs/memory.md.
  static constexpr int64_t kContextBytes = int64_t{592} << 20;
  static constexpr int64_t kGraphLayerBytes = int64_t{64} << 10;
  static constexpr int64_t kTableSizes = 10;
};

}  // namespace

std::string_view memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kWeights:
      return "weights";
    case MemoryKind::kCache:
      return "cache";
    case MemoryKind::kWorkspace:
      return "workspace";
    case MemoryKind::kFixed:
      return "fixed";
  }
  return "";
}

int64_t DeviceMemory::allocated_all(std::span<const int64_t> sizes) const {
  int64_t bytes = 0;
  for (const int64_t size : sizes) bytes += allocated(size);
  return bytes;
}

void MemoryPlan::add(MemoryKind kind, std::string what, int64_t bytes) {
  if (bytes > 0) items.push_back({kind, std::move(what), bytes});
}

int64_t MemoryPlan::bytes(MemoryKind kind) const {
  int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.kind == kind ? item.bytes : 0;
  return sum;
}

int64_t MemoryPlan::total() const {
  int64_t sum = 0;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

std::unique_ptr<DeviceMemory> device_memory(Device device, int num_threads) {
  if (!device.is_cpu()) return std::make_unique<CudaMemory>();
  return std::make_unique<CpuMemory>(num_threads);
}

void add_model(MemoryPlan& plan, const std::string& name, const Model& model,
               const WeightBytes& weights, const CacheOptions& cache, const StepSize& step,
               const DeviceMemory& device) {
  const int64_t before = plan.total();
  const size_t on_host = weights.layers_on_host.size();
  plan.add(MemoryKind::kWeights,
           on_host == 0
               ? name + "weights"
               : fmt::format("{}weights, without {} of {} layers, and room for {} of these", name,
                             on_host, model.num_layers(), LayerStreamer::kSlots),
           weights.bytes);
  if (on_host > 0) {
    plan.layers_on_host = weights.layers_on_host;
    plan.host_bytes = weights.host_bytes;
  }
  add_cache(plan, name, plan_cache(model.cache_layout(), cache), device);
  plan.add(MemoryKind::kWorkspace, name + "activations", device.workspace_bytes(model, step));
  device.add_stream(plan, name);
  device.add_graphs(plan, name, model, step);
  // What comes later may use what loading has left.
  const int64_t later = plan.total() - before - weights.bytes;
  plan.add(MemoryKind::kWeights, name + "while loading", weights.beside - later);
}

void add_cache(MemoryPlan& plan, const std::string& name, const CachePlan& cache,
               const DeviceMemory& device) {
  const CacheAllocations caches = cache_allocations(cache);
  plan.add(MemoryKind::kCache, name + "keys and values of all tokens",
           device.allocated_all(caches.full));
  plan.add(MemoryKind::kCache, name + "keys and values of windows",
           device.allocated_all(caches.window));
  plan.add(MemoryKind::kCache, name + "recurrent states", device.allocated_all(caches.recurrent));
}

std::optional<WeightBytes> plan_offload(const PlacementCount& count, int64_t room) {
  if (count.bytes <= room) return WeightBytes(count.bytes, count.beside);
  const int64_t layers = std::ssize(count.layers);
  for (int64_t on_host = 1; on_host <= layers; ++on_host) {
    WeightBytes weights(count.bytes, count.beside);
    int64_t largest = 0;
    for (int64_t i = 0; i < on_host; ++i) {
      const int64_t index = (2 * i + 1) * layers / (2 * on_host);
      const PlacementCount::Layer& layer = count.layers[static_cast<size_t>(index)];
      weights.layers_on_host.push_back(index);
      weights.bytes -= layer.bytes;
      weights.host_bytes += layer.block;
      largest = std::max(largest, layer.block);
    }
    weights.bytes += LayerStreamer::kSlots * cuda::footprint(largest);
    if (weights.bytes <= room) return weights;
  }
  return std::nullopt;
}

CacheAllocations cache_allocations(const CachePlan& plan) {
  CacheAllocations all;
  const auto add = [](std::vector<int64_t>& to, int64_t elements, DType dtype) {
    if (elements > 0) to.push_back(elements * dtype_bytes(dtype));
  };
  const DType kv = plan.options.kv_dtype;
  for (const CacheGroup& group : plan.groups) {
    std::vector<int64_t>& to = group.is_full() ? all.full : all.window;
    const int64_t rows = group.num_pages * group.num_kv_heads * plan.options.page_tokens;
    for (size_t i = 0; i < 2 * group.layers.size(); ++i) {
      add(to, rows * group.head_dim, kv);
      if (kv == DType::kI8) add(to, rows, DType::kF32);
    }
  }
  for (const RecurrentGroup& group : plan.recurrent_groups) {
    const RecurrentState& s = group.shape;
    const int64_t slots = group.num_slots, logged = plan.options.max_logged_tokens;
    for (size_t i = 0; i < group.layers.size(); ++i) {
      add(all.recurrent, slots * s.value_heads * s.value_dim * s.key_dim, DType::kF32);
      add(all.recurrent, slots * (s.conv_width - 1 + logged) * s.conv_channels, DType::kF32);
      add(all.recurrent, slots * logged * s.key_heads * s.key_dim, DType::kF32);
      add(all.recurrent, slots * logged * s.value_heads * s.value_dim, DType::kF32);
      add(all.recurrent, slots * logged * s.value_heads, DType::kF32);
    }
  }
  return all;
}

std::optional<int64_t> largest_fitting(int64_t low, int64_t high,
                                       const std::function<bool(int64_t)>& fits) {
  if (high < low || !fits(low)) return std::nullopt;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace braid

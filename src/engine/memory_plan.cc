#include "engine/memory_plan.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace braid {
namespace {

constexpr int64_t kFloat = sizeof(float);
// Of an input of a matrix: the element itself, and what rounding makes of it: a copy with spread
// rows, and beside it a packed one; or codes by block and by token, these twice.
double input_bytes(ActivationPrecision precision) {
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

class CpuMemory : public DeviceMemory {
 public:
  explicit CpuMemory(int num_threads) : num_threads_(num_threads) {}

  int64_t workspace_bytes(const Model& model, const StepSize& step) const override {
    const CacheShape cache = cache_shape(model.cache_layout());
    double layer = 0;
    for (int64_t i = 0; i < model.num_layers(); ++i) {
      const LayerInfo info = model.layer_info(i);
      layer = std::max(layer, kFloat * (info.output_elements +
                                        static_cast<double>(cache.copied[static_cast<size_t>(i)])) +
                                  input_bytes(step.precision) * info.input_elements);
    }
    layer += static_cast<double>(kFloat * kHiddenCopies * model.hidden_size());
    // Hidden state, two tables of rotations, what the model adds.
    const int64_t shared =
        model.hidden_size() + 2 * cache.widest_head + model.shared_elements_per_token();
    const double head =
        static_cast<double>(step.tokens * kFloat * model.hidden_size()) +
        static_cast<double>(step.logits_rows) *
            (static_cast<double>(kFloat * (model.vocab_size() + model.hidden_size())) +
             input_bytes(step.precision) * static_cast<double>(model.hidden_size()));
    // What a layer takes is free again when the head begins.
    return step.tokens * kFloat * shared +
           static_cast<int64_t>(std::max(layer * static_cast<double>(step.tokens), head)) +
           num_threads_ * cache.scratch + kAlignmentBytes;
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
  if (!device.is_cpu()) {
    throw Error("--memory-budget is for the CPU so far; leave it out with --device cuda");
  }
  return std::make_unique<CpuMemory>(num_threads);
}

void add_model(MemoryPlan& plan, const std::string& name, const Model& model, int64_t weight_bytes,
               const CacheOptions& cache, const StepSize& step, const DeviceMemory& device) {
  plan.add(MemoryKind::kWeights, name + "weights", weight_bytes);
  const CachePlan caches = plan_cache(model.cache_layout(), cache);
  int64_t full = 0, window = 0, recurrent = 0;
  for (const CacheGroup& group : caches.groups) {
    (group.is_full() ? full : window) += group.size_bytes;
  }
  for (const RecurrentGroup& group : caches.recurrent_groups) recurrent += group.size_bytes;
  plan.add(MemoryKind::kCache, name + "keys and values of all tokens", full);
  plan.add(MemoryKind::kCache, name + "keys and values of windows", window);
  plan.add(MemoryKind::kCache, name + "recurrent states", recurrent);
  plan.add(MemoryKind::kWorkspace, name + "activations", device.workspace_bytes(model, step));
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

#include "quantize/memory_need.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "models/registry.h"
#include "quantize/balance.h"
#include "quantize/calibration_pass.h"
#include "quantize/source.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

constexpr int64_t kFloat = sizeof(float);
// What the library of matrix products and the Hessian's blocks want beside: of columns, multiples.
constexpr int64_t kAlignment = 64;
// Columns whose losses are kept until they are spread.
constexpr int64_t kHostBlock = 128, kDeviceBlock = 512;

int64_t padded(int64_t cols) { return (cols + kAlignment - 1) / kAlignment * kAlignment; }

// The first of the matrices that read what this one reads.
std::string first_reader(std::string name) {
  constexpr std::pair<std::string_view, std::string_view> kAlong[] = {
      {".k_proj.", ".q_proj."}, {".v_proj.", ".q_proj."}, {".up_proj", ".gate_proj"}};
  for (const auto& [matrix, first] : kAlong) {
    if (const size_t at = name.find(matrix); at != name.npos) {
      return name.replace(at, matrix.size(), first);
    }
  }
  return name;
}

}  // namespace

MemoryNeed::MemoryNeed(const std::filesystem::path& model, const QuantizeOptions& options)
    : options_(options),
      files_(std::make_unique<ModelFiles>(open_source(model, options, /*fill=*/false))) {
  files_->weights().set_deferring(true);
  model_ = load_model(*files_);
  plans_ = plan_tensors(files_->weights(), options.recipe);
  if (options.device.is_cpu()) return;
  Placement counting = Placement::counting(options.device);
  model_->place(counting);
  placed_ = counting.counted();
}

bool MemoryNeed::matches(const CalibrationShape& shape) const {
  return shape.sequences > 0 && options_.match_source && options_.method == QuantizeMethod::kGptq;
}

bool MemoryNeed::observes_products(const CalibrationShape& shape) const {
  return shape.sequences > 0 && options_.observes_products();
}

int64_t MemoryNeed::on_device(int64_t bytes) const {
  return options_.device.is_cpu() ? bytes : cuda::footprint(bytes);
}

int64_t MemoryNeed::source_bytes(const CalibrationShape& shape) const {
  if (!options_.device.is_cpu()) {
    int64_t layers = 0, largest = 0;
    for (const PlacementCount::Layer& layer : placed_.layers) {
      layers += layer.bytes;
      largest = std::max(largest, layer.bytes);
    }
    const int64_t shared = placed_.bytes - layers;
    // Quantised matrices come beside the source's, stage by stage.
    return (shared + largest) * passes(shape) + largest + placed_.beside;
  }
  int64_t bytes = 0;
  std::map<int64_t, int64_t> stacks;
  for (const auto& [name, tensor] : files_->weights().tensors()) {
    bytes += tensor.stored_bytes;
    if (expert_name(name)) stacks[layer_of(name).value_or(-1)] += tensor.stored_bytes;
  }
  int64_t largest = 0;
  for (const auto& [layer, size] : stacks) largest = std::max(largest, size);
  return bytes + largest * passes(shape);
}

int64_t MemoryNeed::quantised_bytes() const {
  int64_t bytes = 0;
  for (const TensorPlan& plan : plans_) {
    if (plan.quantised()) bytes += plan.rows() * plan.format->row_bytes(plan.cols());
  }
  return bytes;
}

int64_t MemoryNeed::hidden_bytes(const CalibrationShape& shape) const {
  return passes(shape) * on_device(shape.sequences * shape.length * model_->hidden_size() * kFloat);
}

int64_t MemoryNeed::hessian_bytes(const CalibrationShape& shape) const {
  if (!observes_products(shape)) return 0;
  std::map<int64_t, int64_t> by_layer;
  int64_t most = 0, widest = 0;
  std::map<std::string, int64_t> by_stack;  // of experts one by one, with their common input
  std::set<std::string> counted;
  for (const TensorPlan& plan : plans_) {
    const auto layer = layer_of(plan.name);
    if (!plan.quantised() || !layer) continue;
    const std::string reader = first_reader(plan.name);
    if (!counted.insert(reader).second) continue;
    const int64_t cols = plan.cols();
    int64_t bytes = on_device(cols * cols * kFloat);
    if (plan.kind == ModuleKind::kExperts) {
      if (plan.shape.rank() == 3) bytes *= plan.shape.dim(0);
    } else {
      widest = std::max(widest, cols);
      if (matches(shape)) bytes *= 2;
    }
    by_layer[*layer] += bytes;
    const auto one = expert_name(reader);
    const std::string input = one ? std::string(one->stem) + std::string(one->rest) : reader;
    most = std::max(most, by_stack[input] += bytes);
  }
  if (options_.one_pass) {
    for (const auto& [layer, bytes] : by_layer) most = std::max(most, bytes);
  }
  const int64_t inputs = matches(shape) ? batch_tokens(shape) * padded(widest) * kFloat : 0;
  return most + on_device(inputs);
}

// While the Hessian's inverse is factored, and what stays of it.
int64_t MemoryNeed::factor_bytes(int64_t cols) const {
  const int64_t square = cols * cols;
  if (options_.device.is_cpu()) return square * (8 + 4 + 4);
  // The Hessian in two of bfloat16, the factor and its two; in float64 the matrix and half as much
  // in scratch.
  const int64_t wide = cols * padded(cols);
  return 4 * wide + 4 * square + 4 * wide + 8 * wide + 4 * square;
}

int64_t MemoryNeed::matrix_bytes(int64_t rows, int64_t cols, bool aims) const {
  const int64_t size = rows * padded(cols);
  const int64_t block = std::min(options_.device.is_cpu() ? kHostBlock : kDeviceBlock, cols);
  // Weights and codes; what is left to round, slopes, losses and (on a device) these in two parts.
  const int64_t all = size * (kFloat + 1 + 4 * kFloat) + 2 * kFloat * rows * block;
  const int64_t aim = aims ? 2 * kFloat * size + kFloat * cols * cols : 0;
  return all + aim;
}

int64_t MemoryNeed::solver_bytes(const CalibrationShape& shape) const {
  int64_t most = 0;
  for (const TensorPlan& plan : plans_) {
    if (!plan.quantised()) continue;
    const bool solved = observes_products(shape) && layer_of(plan.name) && has_grid(plan);
    const int64_t rows = plan.shape.dim(-2), cols = plan.cols();
    if (solved) {
      most = std::max(most, factor_bytes(cols) + matrix_bytes(rows, cols, matches(shape)));
    } else if (options_.device.is_cpu()) {
      most = std::max(most, rows * cols * (kFloat + 1));
    }
  }
  return most;
}

int64_t MemoryNeed::balanced_bytes() const {
  return options_.balance > 0 ? braid::balanced_bytes(*files_) : 0;
}

int64_t MemoryNeed::kv_bytes() const {
  return options_.recipe.kv == KvRecipe::kInt8Static ? KvObserver::kMaxBytes : 0;
}

int64_t MemoryNeed::output_bytes() const {
  int64_t most = 0;
  for (const TensorPlan& plan : plans_) {
    // The bytes, and the parts that they are copied together from.
    if (plan.quantised()) {
      most = std::max(most, 2 * plan.rows() * plan.format->row_bytes(plan.cols()));
    }
  }
  return most;
}

CacheOptions MemoryNeed::cache(const CalibrationShape& shape) const {
  return CalibrationPass::cache_options(*model_, shape.sequences, shape.length, options_.device,
                                        options_.precision);
}

int64_t MemoryNeed::batch_tokens(const CalibrationShape& shape) const {
  return shape.length * CalibrationPass::batch_size(shape.sequences, shape.length, options_.device);
}

}  // namespace braid

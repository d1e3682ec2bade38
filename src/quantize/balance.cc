#include "quantize/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "checkpoint/printable.h"
#include "quant/panels.h"
#include "quantize/module_kind.h"
#include "tensor/buffer.h"
#include "tensor/host_copy.h"

namespace braid {
namespace {

constexpr int64_t kColumnGrain = 64, kRowGrain = 16;

enum class Before : uint8_t {
  kNorm,  // a gain of the family's usual norm
  kRows,  // a matrix
};

// Readers: those of them that a layer has; all that read the input.
struct Rule {
  Before kind;
  std::string_view before;
  std::vector<std::string_view> readers;
};

struct Family {
  std::vector<Rule> rules;
  float norm_offset = 0;  // added to stored gains
};

Family family_of(const ModelFiles& files) {
  const std::string& type = files.model_type();
  const Rule attention{Before::kNorm,
                       "input_layernorm",
                       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}};
  const Rule down{Before::kRows, "mlp.up_proj", {"mlp.down_proj"}};
  const std::vector<std::string_view> mlp = {"mlp.gate_proj", "mlp.up_proj"};
  const float offset = files.is_gguf() ? 0.0f : 1.0f;
  if (type.starts_with("gemma4")) {
    return {{attention, {Before::kNorm, "pre_feedforward_layernorm", mlp}, down}, 0};
  }
  if (type.starts_with("gemma3")) {
    return {{attention, {Before::kNorm, "pre_feedforward_layernorm", mlp}, down}, offset};
  }
  if (type.starts_with("qwen3")) {
    const Rule delta{
        Before::kNorm,
        "input_layernorm",
        {"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba", "linear_attn.in_proj_qkv",
         "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a"}};
    return {{attention,
             delta,
             {Before::kNorm, "post_attention_layernorm", mlp},
             down,
             {Before::kRows, "mlp.shared_expert.up_proj", {"mlp.shared_expert.down_proj"}}},
            offset};
  }
  throw Error("{}: there are no rules to balance '{}'", files.origin(), printable(type));
}

std::string full_name(int64_t layer, std::string_view module) {
  return fmt::format("layers.{}.{}.weight", layer, module);
}

using Names = std::set<std::string, std::less<>>;

float value_of(float x) { return x; }
float value_of(BFloat16 x) { return to_float(x); }

// NaN, once met, stays.
void raise(float& largest, float x) {
  const float size = std::abs(x);
  if (!(size <= largest)) largest = size;
}

// The largest magnitude in each column of what a layer's products read.
class InputSizes : public StepContext::ProductObserver {
 public:
  explicit InputSizes(const Stream& stream) : stream_(stream) {}

  void input(std::span<const std::string_view> readers, const TensorView& x) override {
    Names names;
    for (const std::string_view reader : readers) {
      if (!reader.empty()) names.emplace(reader);
    }
    if (names.empty() || x.dim(0) == 0) return;
    std::vector<float>& sizes = sizes_[names];
    sizes.resize(static_cast<size_t>(x.dim(1)));
    const TensorView rows = copy_.fetch(stream_, x);
    if (rows.dtype() == DType::kBF16) {
      add<BFloat16>(rows, sizes);
    } else {
      add<float>(rows, sizes);
    }
  }
  void expert_input(std::span<const std::string_view>, const TensorView&,
                    const TensorView&) override {}

  // Of the wanted matrices those that were seen and what they all read, if it is one input that
  // nothing else is known to read.
  struct Seen {
    std::vector<std::string> readers;
    std::vector<float> sizes;
  };
  std::optional<Seen> find(const Names& wanted) const {
    const std::pair<const Names, std::vector<float>>* only = nullptr;
    for (const auto& entry : sizes_) {
      const bool reads =
          std::any_of(entry.first.begin(), entry.first.end(),
                      [&](const std::string& name) { return wanted.contains(name); });
      if (!reads) continue;
      const bool known =
          std::includes(wanted.begin(), wanted.end(), entry.first.begin(), entry.first.end());
      if (only != nullptr || !known) return std::nullopt;
      only = &entry;
    }
    if (only == nullptr) return std::nullopt;
    return Seen{{only->first.begin(), only->first.end()}, only->second};
  }

 private:
  template <typename T>
  void add(const TensorView& rows, std::vector<float>& sizes) {
    stream_.pool().parallel_for(rows.dim(1), kColumnGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = 0; r < rows.dim(0); ++r) {
        const T* row = rows.data<T>() + r * rows.row_stride();
        for (int64_t c = begin; c < end; ++c) raise(sizes[c], value_of(row[c]));
      }
    });
  }

  const Stream& stream_;
  HostCopy copy_;
  std::map<Names, std::vector<float>> sizes_;
};

// What becomes of a tensor: element (r, c) times 2^(columns[c] − rows[r]), a gain, which is stored
// less `offset`, over 2^gains[c]. Empty: nothing.
struct Change {
  std::vector<int> columns, rows, gains;
  double offset = 0;
};

class SourceBalancer {
 public:
  SourceBalancer(WeightMap& weights, const Family& family, ThreadPool& pool, double strength)
      : weights_(weights), family_(family), pool_(pool), strength_(strength) {}

  void add_layer(int64_t layer, const InputSizes& inputs) {
    for (const Rule& rule : family_.rules) {
      Names wanted;
      for (const std::string_view reader : rule.readers) wanted.insert(full_name(layer, reader));
      const std::optional<InputSizes::Seen> seen = inputs.find(wanted);
      const std::string before = full_name(layer, rule.before);
      const StoredTensor* made_by = weights_.find(before);
      const bool fits = seen && made_by != nullptr &&
                        made_by->weight.shape.dim(0) == static_cast<int64_t>(seen->sizes.size());
      if (fits) add_group(rule, before, *seen);
    }
  }

  std::vector<BalancedGroup> apply() {
    for (const auto& [name, change] : changes_) {
      StoredTensor tensor = *weights_.find(name);
      replace(tensor, change);
      weights_.remove(name);
      weights_.add(std::move(tensor));
    }
    return std::move(groups_);
  }

 private:
  void add_group(const Rule& rule, const std::string& before, const InputSizes::Seen& seen) {
    const auto cols = static_cast<int64_t>(seen.sizes.size());
    for (const float size : seen.sizes) {
      if (std::isfinite(size)) continue;
      throw Error("{}: the calibration gives {} inputs that are not finite", weights_.origin(),
                  printable(seen.readers[0]));
    }
    std::vector<float> weights(seen.sizes.size());
    for (const std::string& reader : seen.readers) {
      const std::vector<float> sizes = column_sizes(weights_.find(reader)->weight);
      for (int64_t c = 0; c < cols; ++c) raise(weights[c], sizes[c]);
    }
    const std::vector<int> exponents = balance_exponents(seen.sizes, weights, strength_);
    const auto [smallest, largest] = std::minmax_element(exponents.begin(), exponents.end());
    groups_.push_back({.before = before,
                       .readers = seen.readers,
                       .channels = cols,
                       .scaled = cols - std::count(exponents.begin(), exponents.end(), 0),
                       .smallest = *smallest,
                       .largest = *largest});
    for (const std::string& reader : seen.readers) changes_[reader].columns = exponents;
    Change& change = changes_[before];
    if (rule.kind == Before::kNorm) {
      change.gains = exponents;
      change.offset = family_.norm_offset;
    } else {
      change.rows = exponents;
    }
  }

  std::vector<float> column_sizes(const Weight& weight) const {
    const int64_t cols = weight.cols();
    std::vector<std::vector<float>> sizes(static_cast<size_t>(pool_.num_threads()),
                                          std::vector<float>(static_cast<size_t>(cols)));
    pool_.parallel_for(weight.rows(), kRowGrain, [&](int64_t begin, int64_t end, int thread) {
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        expand_row(weight, r, row.data());
        for (int64_t c = 0; c < cols; ++c) raise(sizes[thread][c], row[c]);
      }
    });
    for (const std::vector<float>& other : sizes) {
      for (int64_t c = 0; c < cols; ++c) raise(sizes[0][c], other[c]);
    }
    return std::move(sizes[0]);
  }

  void replace(StoredTensor& tensor, const Change& change) const {
    const Weight source = tensor.weight;
    const bool narrow = change.gains.empty() && source.format->id == FormatId::kBF16;
    const QuantFormat& format = quant_format(narrow ? FormatId::kBF16 : FormatId::kF32);
    const int64_t cols = source.cols(), rows = source.shape.num_elements() / cols;
    const int64_t row_bytes = format.row_bytes(cols);
    auto memory = std::make_shared<Buffer>(static_cast<size_t>(rows * row_bytes), Device());
    pool_.parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> row(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        expand_row(source, r, row.data());
        for (int64_t c = 0; c < cols; ++c) {
          if (!change.gains.empty()) {
            row[c] = static_cast<float>(std::ldexp(change.offset + row[c], -change.gains[c]) -
                                        change.offset);
            continue;
          }
          const int exponent = (change.columns.empty() ? 0 : change.columns[c]) -
                               (change.rows.empty() ? 0 : change.rows[r]);
          row[c] = std::ldexp(row[c], exponent);
        }
        quantize(format, row.data(), cols, memory->data() + r * row_bytes);
      }
    });
    tensor.weight.format = &format;
    tensor.weight.data = memory->data();
    tensor.weight.owner = memory;
    tensor.dtype_name = narrow ? "BF16" : "F32";
    tensor.stored_bytes = rows * row_bytes;
  }

  WeightMap& weights_;
  const Family& family_;
  ThreadPool& pool_;
  double strength_;
  std::map<std::string, Change> changes_;
  std::vector<BalancedGroup> groups_;
};

}  // namespace

std::vector<int> balance_exponents(std::span<const float> inputs, std::span<const float> weights,
                                   double strength) {
  std::vector<double> logs(inputs.size());
  double sum = 0;
  int64_t live = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == 0 || weights[i] == 0) continue;
    logs[i] = strength * std::log2(inputs[i]) - (1 - strength) * std::log2(weights[i]);
    sum += logs[i];
    ++live;
  }
  std::vector<int> exponents(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == 0 || weights[i] == 0) continue;
    const double log = logs[i] - sum / static_cast<double>(live);
    exponents[i] =
        std::clamp(static_cast<int>(std::lround(log)), -kMaxBalanceExponent, kMaxBalanceExponent);
  }
  return exponents;
}

std::vector<BalancedGroup> balance_source(ModelFiles& files, LayerCalibration& layers,
                                          const Stream& stream, double strength,
                                          const std::function<void(int64_t layer)>& progress) {
  const Family family = family_of(files);
  SourceBalancer balancer(files.weights(), family, stream.pool(), strength);
  layers.begin();
  for (int64_t layer = 0; layer < layers.num_layers(); ++layer) {
    progress(layer);
    layers.open_layer(layer);
    InputSizes inputs(stream);
    layers.advance(nullptr, &inputs);
    layers.close_layer();
    balancer.add_layer(layer, inputs);
  }
  return balancer.apply();
}

int64_t balanced_bytes(const ModelFiles& files) {
  Names modules;
  for (const Rule& rule : family_of(files).rules) {
    modules.emplace(rule.before);
    modules.insert(rule.readers.begin(), rule.readers.end());
  }
  int64_t bytes = 0;
  for (const auto& [name, tensor] : files.weights().tensors()) {
    const std::optional<int64_t> layer = layer_of(name);
    if (!layer || tensor.weight.format == nullptr) continue;
    const bool known = std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
      return name == full_name(*layer, module);
    });
    const bool narrow =
        tensor.weight.shape.rank() > 1 && tensor.weight.format->id == FormatId::kBF16;
    if (known) bytes += tensor.weight.shape.num_elements() * (narrow ? 2 : 4);
  }
  return bytes;
}

}  // namespace braid

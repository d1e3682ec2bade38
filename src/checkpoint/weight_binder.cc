#include <cstring>
#include <numeric>

#include "base/error.h"
#include "checkpoint/dummy_weights.h"
#include "checkpoint/printable.h"
#include "checkpoint/weight_map.h"
#include "quant/deferred_weight.h"
#include "quant/panels.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

constexpr size_t kMaxFaultsTold = 20;

std::string describe(const StoredTensor& tensor) {
  const std::string name = printable(tensor.name);
  if (tensor.file_name.empty()) return fmt::format("{} ({})", name, tensor.file);
  return fmt::format("{} ({} of {})", name, printable(tensor.file_name), tensor.file);
}

// The alignment that kernels rely on: of a plain element, or of the float16 scales of blocks.
size_t needed_alignment(const QuantFormat& format) {
  return format.plain() ? static_cast<size_t>(format.block_bytes) : alignof(Float16);
}

// safetensors headers of any length are legal, so tensors can lie at odd addresses.
Weight aligned(Weight weight) {
  const size_t alignment = needed_alignment(*weight.format);
  if (reinterpret_cast<uintptr_t>(weight.data) % alignment == 0) return weight;
  const auto bytes = static_cast<size_t>(weight.size_bytes());
  const auto copy = std::make_shared<Buffer>(bytes, Device{});
  std::memcpy(copy->data(), weight.data, bytes);
  weight.data = copy->data();
  weight.owner = copy;
  return weight;
}

// Of a matrix that is made of parts.
class ConvertedPayload : public PayloadMaker {
 public:
  explicit ConvertedPayload(std::function<Weight()> convert) : convert_(std::move(convert)) {}

  void make(std::byte* to, Device device) const override {
    const Weight weight = convert_();
    const auto bytes = static_cast<size_t>(weight.size_bytes());
    if (device.is_cpu()) {
      std::memcpy(to, weight.data, bytes);
    } else {
      cuda::copy_to_device(to, weight.data, bytes, device.index);
    }
  }

 private:
  std::function<Weight()> convert_;
};

// "25.2 B", "14.1 G": three digits and a decimal prefix.
std::string with_prefix(double value, std::string_view giga) {
  if (value >= 1e9) return fmt::format("{:.3g} {}", value / 1e9, giga);
  if (value >= 1e6) return fmt::format("{:.3g} M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.3g} k", value / 1e3);
  return fmt::format("{} ", value);
}

void keep_dummy(WeightMap* map, const std::string& name, const Weight& weight) {
  if (map == nullptr || map->find(name) != nullptr) return;
  const FormatId id = weight.format->id;
  const std::string type = id == FormatId::kF32    ? "F32"
                           : id == FormatId::kBF16 ? "BF16"
                                                   : std::string(weight.format->name);
  map->add({.name = name,
            .file = map->origin(),
            .dtype_name = type,
            .weight = weight,
            .stored_bytes = weight.size_bytes()});
}

// As it would be stored: without the offset.
void keep_dummy(WeightMap* map, const std::string& name, const Tensor& tensor, float offset) {
  if (map == nullptr) return;
  Weight weight{.format = &quant_format(FormatId::kF32), .shape = tensor.shape()};
  const auto buffer = std::make_shared<Buffer>(static_cast<size_t>(weight.size_bytes()), Device{});
  auto* to = reinterpret_cast<float*>(buffer->data());
  for (const float value : tensor.view().span<float>()) *to++ = value - offset;
  weight.data = buffer->data();
  weight.owner = buffer;
  keep_dummy(map, name, weight);
}

}  // namespace

std::string to_string(const LoadReport& report) {
  std::string bytes = with_prefix(static_cast<double>(report.weight_bytes), "G") + "B";
  std::string parameters = with_prefix(static_cast<double>(report.num_parameters), "B");
  if (parameters.back() != ' ') parameters += ' ';
  std::string text = fmt::format("{} of {} tensors consumed ({}parameters, {})",
                                 report.num_consumed, report.num_tensors, parameters, bytes);
  if (report.num_ignored > 0) {
    std::vector<std::string> reasons;
    for (const auto& [reason, count] : report.num_ignored_because) {
      reasons.push_back(fmt::format("{} {}", count, reason));
    }
    text += fmt::format(", {} ignored: {}", report.num_ignored, join_some(reasons));
  }
  return text;
}

bool WeightBinder::has(std::string_view name) const { return map_.find(name) != nullptr; }

const StoredTensor* WeightBinder::take(const std::string& name, const Shape* shape, Kind kind) {
  const auto fault = [&](std::string message) {
    // Asking again for a faulty tensor adds nothing.
    Fate& fate = seen_.try_emplace(name, Fate::kIgnored).first->second;
    if (fate != Fate::kFaulty) faults_.push_back(std::move(message));
    fate = Fate::kFaulty;
    return nullptr;
  };
  const StoredTensor* tensor = map_.find(name);
  if (tensor == nullptr) return fault(fmt::format("{}: missing", name));
  const Weight& weight = tensor->weight;
  if (shape != nullptr ? weight.shape != *shape : weight.shape.num_elements() != 1) {
    return fault(fmt::format("{}: shape {}, but the model needs {}", describe(*tensor),
                             to_string(weight.shape),
                             shape != nullptr ? to_string(*shape) : "a single element"));
  }
  const bool integers = tensor->dtype_name == "I64" || tensor->dtype_name == "I32";
  if (kind == Kind::kIntegers ? !integers : weight.format == nullptr && !tensor->convert) {
    return fault(fmt::format("{}: type {} cannot be read", describe(*tensor), tensor->dtype_name));
  }
  return tensor;
}

void WeightBinder::consume(const std::string& name, const Shape& shape, int64_t bytes) {
  const auto [it, is_new] = seen_.try_emplace(name, Fate::kConsumed);
  if (!is_new && it->second == Fate::kConsumed) return;
  it->second = Fate::kConsumed;
  ++report_.num_consumed;
  report_.num_parameters += shape.num_elements();
  report_.weight_bytes += bytes;
}

Weight WeightBinder::weight(const std::string& name, const Shape& shape) {
  // Tied weights are asked for twice, and may be copies.
  if (const auto it = bound_.find(name); it != bound_.end() && it->second.shape == shape) {
    return it->second;
  }
  Weight weight;
  if (map_.is_dummy()) {
    weight = make_dummy_weight(map_.dummy_seed(), name, shape, map_.dummy_formats().of(name),
                               map_.fills_dummy());
    keep_dummy(map_.made(), name, weight);
  } else {
    const StoredTensor* tensor = take(name, &shape);
    if (tensor == nullptr) return {};
    const QuantFormat* format = find_quant_format(tensor->dtype_name);
    if (map_.deferring() && tensor->convert && format != nullptr) {
      weight =
          defer_weight(*format, shape, std::make_shared<const ConvertedPayload>(tensor->convert));
    } else {
      weight = aligned(tensor->payload());
    }
  }
  consume(name, shape, weight.size_bytes());
  // One that was made of parts may take gigabytes, and its reader may put it elsewhere.
  const StoredTensor* tensor = map_.find(name);
  if (tensor == nullptr || !tensor->convert || map_.deferring()) {
    bound_.insert_or_assign(name, weight);
  }
  return weight;
}

Tensor WeightBinder::f32(const std::string& name, const Shape& shape, float offset) {
  if (map_.is_dummy()) {
    consume(name, shape, shape.num_elements() * static_cast<int64_t>(sizeof(float)));
    Tensor made = make_dummy_f32(map_.dummy_seed(), name, shape);
    keep_dummy(map_.made(), name, made, offset);
    return made;
  }
  const StoredTensor* tensor = take(name, &shape);
  if (tensor == nullptr) return Tensor(DType::kF32, shape);
  const Weight weight = aligned(tensor->payload());
  consume(name, shape, weight.size_bytes());
  Tensor out(DType::kF32, shape);
  const std::span<float> values = out.view().span<float>();
  if (weight.format->panels() || weight.format->has_row_header()) {
    const int64_t cols = weight.cols();
    const int64_t rows = static_cast<int64_t>(values.size()) / cols;
    for (int64_t row = 0; row < rows; ++row) expand_row(weight, row, values.data() + row * cols);
  } else {
    dequantize(*weight.format, weight.data, static_cast<int64_t>(values.size()), values.data());
  }
  if (offset != 0) {
    for (float& value : values) value += offset;
  }
  return out;
}

float WeightBinder::scalar(const std::string& name) {
  if (map_.is_dummy()) return f32(name, Shape{1}).data<float>()[0];
  const StoredTensor* tensor = take(name, nullptr);
  if (tensor == nullptr) return 0;
  return f32(name, tensor->weight.shape).data<float>()[0];
}

float WeightBinder::scale(const std::string& name, float smallest, float largest) {
  const StoredTensor* tensor = take(name, nullptr);
  if (tensor == nullptr) return 0;
  const Weight weight = aligned(tensor->payload());
  float value = 0;
  dequantize(*weight.format, weight.data, 1, &value);
  if (!(value >= smallest && value <= largest)) {
    faults_.push_back(fmt::format("{}: {}, but a scale must be a number from {} to {}",
                                  describe(*tensor), value, smallest, largest));
  }
  consume(name, Shape{0}, weight.size_bytes());
  return value;
}

std::vector<int64_t> WeightBinder::integers(const std::string& name, const Shape& shape) {
  const Shape no_parameters{0};
  std::vector<int64_t> values(static_cast<size_t>(shape.num_elements()));
  std::iota(values.begin(), values.end(), 0);
  if (map_.is_dummy()) {
    consume(name, no_parameters, shape.num_elements() * static_cast<int64_t>(sizeof(int64_t)));
    return values;
  }
  const StoredTensor* tensor = take(name, &shape, Kind::kIntegers);
  if (tensor == nullptr) return {};
  consume(name, no_parameters, tensor->stored_bytes);
  const std::byte* data = tensor->weight.data;
  for (int64_t& value : values) {
    if (tensor->dtype_name == "I64") {
      std::memcpy(&value, data, sizeof(int64_t));
      data += sizeof(int64_t);
    } else {
      int32_t narrow = 0;
      std::memcpy(&narrow, data, sizeof(int32_t));
      data += sizeof(int32_t);
      value = narrow;
    }
  }
  return values;
}

void WeightBinder::mark_ignored(const std::string& name, std::string_view reason) {
  if (!seen_.try_emplace(name, Fate::kIgnored).second) return;
  ++report_.num_ignored;
  report_.ignored.push_back(fmt::format("{} ({})", printable(name), reason));
  ++report_.num_ignored_because[std::string(reason)];
}

void WeightBinder::ignore(const std::string& name, std::string_view reason) {
  if (has(name)) mark_ignored(name, reason);
}

void WeightBinder::ignore_prefix(std::string_view prefix, std::string_view reason) {
  const auto& tensors = map_.tensors();
  for (auto it = tensors.lower_bound(prefix); it != tensors.end(); ++it) {
    if (!it->first.starts_with(prefix)) break;
    mark_ignored(it->first, reason);
  }
}

LoadReport WeightBinder::finish() {
  for (const auto& [name, tensor] : map_.tensors()) {
    if (!seen_.contains(name)) {
      faults_.push_back(fmt::format("{}: not used by the model", describe(tensor)));
    }
  }
  if (!faults_.empty()) {
    throw Error("{}: the weights do not fit the model: {}", map_.origin(),
                join_some(faults_, "; ", kMaxFaultsTold));
  }
  report_.num_tensors = map_.is_dummy() ? report_.num_consumed : static_cast<int64_t>(map_.size());
  return report_;
}

}  // namespace braid

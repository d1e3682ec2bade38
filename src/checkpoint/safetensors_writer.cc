#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace braid {
namespace {

std::string_view type_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI16:
      return "I16";
    case DType::kI8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  BRAID_CHECK(false, "dtype {}", static_cast<int>(dtype));
  return {};
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path,
                                     const std::vector<Declaration>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)) {
  // Wide elements first, so that every tensor is aligned to its element.
  std::vector<const Declaration*> order;
  for (const Declaration& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const Declaration* a, const Declaration* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const Declaration* tensor : order) {
    const int64_t begin = offset;
    offset += tensor->shape.num_elements() * dtype_bytes(tensor->dtype);
    const bool is_new =
        tensors_.emplace(tensor->name, Progress{tensor->dtype, begin, offset, begin}).second;
    BRAID_CHECK(is_new && tensor->name != "__metadata__", "tensor {} declared twice", tensor->name);
    header[tensor->name] = {
        {"dtype", type_name(tensor->dtype)},
        {"shape", std::vector<int64_t>(tensor->shape.sizes().begin(), tensor->shape.sizes().end())},
        {"data_offsets", {begin, offset}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data starts aligned
  const uint64_t header_bytes = text.size();
  for (auto& [name, progress] : tensors_) {
    for (int64_t* position : {&progress.begin, &progress.end, &progress.next}) {
      *position += static_cast<int64_t>(sizeof(header_bytes) + header_bytes);
    }
  }

  text.insert(0, reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file_.write_at(0, std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  const auto it = tensors_.find(name);
  BRAID_CHECK(it != tensors_.end(), "tensor {} was not declared", name);
  Progress& tensor = it->second;
  BRAID_CHECK(static_cast<int64_t>(bytes.size()) <= tensor.end - tensor.next,
              "tensor {}: {} bytes too many", name,
              static_cast<int64_t>(bytes.size()) - (tensor.end - tensor.next));
  file_.write_at(tensor.next, bytes);
  tensor.next += static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::write(const std::string& name, const TensorView& rows) {
  const auto it = tensors_.find(name);
  BRAID_CHECK(it != tensors_.end(), "tensor {} was not declared", name);
  BRAID_CHECK(it->second.dtype == rows.dtype(), "tensor {}: given {}", name,
              dtype_name(rows.dtype()));
  BRAID_CHECK(rows.contiguous() && rows.device().is_cpu(), "tensor {}", name);
  const size_t bytes = static_cast<size_t>(rows.num_elements()) * dtype_bytes(rows.dtype());
  write(name, {static_cast<const std::byte*>(rows.raw()), bytes});
}

void SafetensorsWriter::finish() {
  for (const auto& [name, tensor] : tensors_) {
    BRAID_CHECK(tensor.next == tensor.end, "tensor {}: {} bytes never written", name,
                tensor.end - tensor.next);
  }
  file_.finish();
}

}  // namespace braid

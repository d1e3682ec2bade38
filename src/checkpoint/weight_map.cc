#include "checkpoint/weight_map.h"

#include "base/error.h"
#include "checkpoint/printable.h"

namespace braid {
namespace {

// "model.layers.0.x of path", by the name the file uses.
std::string place(const StoredTensor& tensor) {
  const std::string& name = tensor.file_name.empty() ? tensor.name : tensor.file_name;
  return fmt::format("{} of {}", printable(name), tensor.file);
}

}  // namespace

WeightMap WeightMap::dummy(uint64_t seed, const DummyFormats& formats, bool fill) {
  WeightMap map;
  map.dummy_seed_ = seed;
  map.dummy_formats_ = formats;
  map.fills_dummy_ = fill;
  map.origin_ = "random weights";
  return map;
}

void WeightMap::add(StoredTensor tensor) {
  const auto [it, is_new] = tensors_.try_emplace(tensor.name);
  if (!is_new) {
    throw Error("tensor {} occurs twice: {} and {}", printable(tensor.name), place(it->second),
                place(tensor));
  }
  it->second = std::move(tensor);
}

void WeightMap::remove(std::string_view name) {
  if (const auto it = tensors_.find(name); it != tensors_.end()) tensors_.erase(it);
}

void WeightMap::rename(const std::function<std::string(std::string_view)>& rename) {
  std::map<std::string, StoredTensor, std::less<>> renamed;
  renamed.swap(tensors_);
  for (auto& [name, tensor] : renamed) {
    std::string new_name = rename(name);
    if (!new_name.empty() && new_name != name) {
      if (tensor.file_name.empty()) tensor.file_name = name;
      tensor.name = std::move(new_name);
    }
    add(std::move(tensor));
  }
}

const StoredTensor* WeightMap::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace braid

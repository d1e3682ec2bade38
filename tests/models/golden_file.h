#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace braid {

// The tensors of a golden.safetensors file by name; see tests/data/models/README.md.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) {
    for (StoredTensor& tensor : read_safetensors(path)) tensors_.emplace(tensor.name, tensor);
  }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  std::vector<float> floats(const std::string& name) const { return values<float>(name); }
  std::vector<int32_t> ints(const std::string& name) const { return values<int32_t>(name); }
  int64_t dim(const std::string& name, int i) const {
    return tensors_.at(name).weight.shape.dim(i);
  }
  // Prompts are named p1, p17, ...: the tensors p1.ids, p17.ids, ...
  std::vector<std::string> prompts() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) {
      constexpr std::string_view kSuffix = ".ids";
      if (name.ends_with(kSuffix)) names.push_back(name.substr(0, name.size() - kSuffix.size()));
    }
    return names;
  }

 private:
  template <typename T>
  std::vector<T> values(const std::string& name) const {
    const StoredTensor& tensor = tensors_.at(name);
    std::vector<T> result(tensor.weight.shape.num_elements());
    std::memcpy(result.data(), tensor.weight.data, result.size() * sizeof(T));
    return result;
  }

  std::map<std::string, StoredTensor> tensors_;
};

// ||a - b|| / ||b||
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace braid

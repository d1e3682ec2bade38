#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors_writer.h"
#include "models/registry.h"
#include "support/temp_folder.h"

namespace braid {

// Copies of a tiny checkpoint with one thing wrong must be refused, and the message must name it.
class BindingTest : public ::testing::Test {
 protected:
  explicit BindingTest(const char* model)
      : source_(std::filesystem::path(BRAID_TEST_DATA) / "models" / model) {}

  void SetUp() override { std::filesystem::copy(source_ / "config.json", folder_); }

  static DType stored_dtype(const StoredTensor& tensor) {
    return tensor.weight.format->id == FormatId::kF32 ? DType::kF32 : DType::kBF16;
  }

  // Rewrites the weights, each tensor as `edit` leaves its name and shape (empty name: dropped).
  template <typename Edit>
  void write_weights(Edit edit, const std::vector<SafetensorsWriter::Declaration>& extra = {}) {
    const WeightMap weights = ModelFiles::open(source_).weights();
    std::vector<SafetensorsWriter::Declaration> declarations = extra;
    std::vector<const StoredTensor*> sources(extra.size(), nullptr);
    for (const auto& [name, tensor] : weights.tensors()) {
      SafetensorsWriter::Declaration declaration{name, stored_dtype(tensor), tensor.weight.shape};
      edit(declaration);
      if (declaration.name.empty()) continue;
      declarations.push_back(declaration);
      sources.push_back(&tensor);
    }
    SafetensorsWriter writer(folder_ / "model.safetensors", declarations);
    for (size_t i = 0; i < declarations.size(); ++i) {
      const size_t bytes =
          declarations[i].shape.num_elements() * dtype_bytes(declarations[i].dtype);
      if (sources[i] != nullptr) {
        writer.write(declarations[i].name, std::span(sources[i]->weight.data, bytes));
      } else {
        writer.write(declarations[i].name,
                     std::span<const std::byte>(std::vector<std::byte>(bytes)));
      }
    }
    writer.finish();
  }

  std::string load_error() {
    try {
      ModelFiles files = ModelFiles::open(folder_);
      load_model(files);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  testing::TempFolder temp_folder_;
  std::filesystem::path source_, folder_ = temp_folder_.path();
};

}  // namespace braid

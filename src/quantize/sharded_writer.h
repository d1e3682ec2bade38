#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace braid {

// Tensors of a checkpoint that are made together: a matrix in parts, or one tensor as it was.
struct OutputTensors {
  struct Part {
    std::string name;
    DType dtype;
    Shape shape;
    int64_t bytes() const { return shape.num_elements() * dtype_bytes(dtype); }
  };
  std::vector<Part> parts;
  // The bytes of each part, in this order.
  std::function<std::vector<std::vector<std::byte>>()> make;
  std::span<const std::byte> stored;  // or, of a single part, where they are

  int64_t bytes() const;
};

// Writes model.safetensors, or, beyond max_shard_bytes, several files and their index. `written` is
// called with the bytes of each after it is written. Returns the files' names.
std::vector<std::string> write_sharded(const std::filesystem::path& folder,
                                       const std::vector<OutputTensors>& tensors,
                                       int64_t max_shard_bytes,
                                       const std::function<void(int64_t bytes)>& written);

}  // namespace braid

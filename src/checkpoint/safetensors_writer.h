#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/partial_file.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"
#include "tensor/tensor_view.h"

namespace braid {

// Writes one safetensors file. All tensors are declared first; their bytes then come in pieces, in
// any order among tensors and in order within each. The file appears in finish(), or not at all.
// Not thread-safe.
class SafetensorsWriter {
 public:
  struct Declaration {
    std::string name;
    DType dtype;
    Shape shape;
  };

  // Throws Error naming the path if it cannot be created.
  SafetensorsWriter(std::filesystem::path path, const std::vector<Declaration>& tensors,
                    const std::map<std::string, std::string>& metadata = {});

  // The next bytes of a declared tensor. Throws Error if the disk is full and the like.
  void write(const std::string& name, std::span<const std::byte> bytes);
  // The next rows of a declared tensor, from CPU memory.
  void write(const std::string& name, const TensorView& rows);

  // Puts the file in place. All tensors must be complete by now.
  void finish();

 private:
  struct Progress {
    DType dtype;
    int64_t begin, end, next;  // bytes within the file
  };

  PartialFile file_;
  std::map<std::string, Progress, std::less<>> tensors_;
};

}  // namespace braid

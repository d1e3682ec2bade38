// dump_weights MODEL FILE: the quantised matrices of a checkpoint (of a GGUF file: all tensors) as
// braid reads them, expanded to float32, by the names that the model's layers know (those of the
// file). For tools/quantize/verify.py and verify_gguf.py.

#include <cstdio>
#include <exception>
#include <vector>

#include "checkpoint/model_files.h"
#include "checkpoint/safetensors_writer.h"
#include "quant/panels.h"

int main(int argc, char** argv) {
  using namespace braid;
  if (argc != 3) {
    std::fprintf(stderr, "usage: dump_weights MODEL FILE\n");
    return 2;
  }
  try {
    const ModelFiles files = ModelFiles::open(argv[1]);
    std::vector<SafetensorsWriter::Declaration> declarations;
    for (const auto& [name, tensor] : files.weights().tensors()) {
      if (tensor.parts != nullptr || files.is_gguf())
        declarations.push_back({name, DType::kF32, tensor.weight.shape});
    }
    SafetensorsWriter writer(argv[2], declarations);
    for (const auto& declaration : declarations) {
      const Weight weight = files.weights().find(declaration.name)->payload();
      std::vector<float> row(static_cast<size_t>(weight.cols()));
      for (int64_t r = 0; r < weight.shape.num_elements() / weight.cols(); ++r) {
        expand_row(weight, r, row.data());
        writer.write(declaration.name, std::as_bytes(std::span(row)));
      }
    }
    writer.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dump_weights: %s\n", error.what());
    return 1;
  }
  return 0;
}

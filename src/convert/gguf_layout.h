#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "tensor/shape.h"

namespace braid {

// A tensor of a GGUF file, by the model's own tensors that it is made of.
struct GgufTensor {
  enum class Change : uint8_t {
    kNone,
    kPlusOne,          // norms that Hugging Face files hold less one
    kMinusExponential  // A_log, which is a decay rate in GGUF files
  };

  std::string name;
  Shape shape;                       // [.., rows, cols]
  std::vector<std::string> sources;  // canonical names; of several the matrices make one stack
  // The row of the (only) source that each row is, stacks counted through; empty: in order.
  std::vector<int64_t> rows = {};
  // Likewise columns, in runs of column_run: entry i is the source's run that is run i.
  std::vector<int64_t> column_runs = {};
  int64_t column_run = 0;
  Change change = Change::kNone;
  bool always_f32 = false;         // vectors, routers, convolutions
  std::vector<float> values = {};  // of a tensor without sources
};

struct GgufLayout {
  std::string architecture;
  std::vector<GgufTensor> tensors = {};
  struct LeftOut {
    std::string name;  // canonical
    std::string reason;
  };
  std::vector<LeftOut> left_out = {};
};

// How a model whose tensors have canonical names is stored as GGUF: names, row orders and values as
// llama.cpp's converter writes them. A GGUF file's tensors stay as they are. Throws Error for
// families without such files, and for tensors that have no place in one.
GgufLayout gguf_layout(const ModelFiles& files);

}  // namespace braid

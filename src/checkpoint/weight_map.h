#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quant/weight.h"
#include "tensor/tensor.h"

namespace braid {

// One tensor of a file. `dtype_name` is what the file calls its type (for messages and reports).
struct StoredTensor {
  std::string name;       // canonical name, see WeightMap
  std::string file_name;  // its name in the file, if that differs
  std::string file;       // path of the file that holds it
  std::string dtype_name;
  Weight weight;  // format null: a type no kernel reads (integers, ...); shape is still set
};

// All tensors of a checkpoint by name. safetensors and GGUF files fill it with the names they use;
// a model family then renames them to its canonical names (those of the Hugging Face checkpoint,
// without the prefix). Alternatively a map of random weights, which makes up whatever is asked of
// it.
class WeightMap {
 public:
  WeightMap() = default;

  // Weights of any name and shape, seeded by (seed, name): for benchmarks at real sizes. Values are
  // about N(0, 1/cols); vectors are near 1. Matrices come in `format`; their memory is really
  // filled.
  static WeightMap dummy(uint64_t seed, const QuantFormat& format);

  // Throws Error naming both files if the name is taken.
  void add(StoredTensor tensor);
  // Renames every tensor by `rename(name)`; an empty result keeps the name. Throws Error when two
  // tensors get the same name.
  void rename(const std::function<std::string(std::string_view)>& rename);
  // The tensor, or nullptr.
  const StoredTensor* find(std::string_view name) const;

  bool is_dummy() const { return dummy_format_ != nullptr; }
  size_t size() const { return tensors_.size(); }
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  // The checkpoint's path, for messages.
  const std::string& origin() const { return origin_; }
  void set_origin(std::string origin) { origin_ = std::move(origin); }

 private:
  friend class WeightBinder;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::string origin_;
  const QuantFormat* dummy_format_ = nullptr;
  uint64_t dummy_seed_ = 0;
};

struct LoadReport {
  int64_t num_tensors = 0;   // in the files
  int64_t num_consumed = 0;  // bound to the model
  int64_t num_ignored = 0;   // named by an ignore rule of the model family, with the reason
  int64_t weight_bytes = 0;  // of the consumed ones, as stored
  int64_t num_parameters = 0;
  std::vector<std::string> ignored;  // "name (reason)"
};
// "658 of 658 tensors consumed (25.2 B parameters, 14.1 GB)", plus what was ignored.
std::string to_string(const LoadReport& report);

// Binds a map to a model, totally: each request names a tensor and its shape; finish() throws one
// Error that lists what was missing, misshapen, of an unreadable type, or left over, each with its
// file.
class WeightBinder {
 public:
  explicit WeightBinder(const WeightMap& map) : map_(map) {}

  bool has(std::string_view name) const;
  // A matrix or stack of matrices in any format. On a fault, records it and returns an empty
  // Weight.
  Weight weight(const std::string& name, const Shape& shape);
  // A small tensor expanded to float32, with `offset` added to each element (norms stored as 1 +
  // w).
  Tensor f32(const std::string& name, const Shape& shape, float offset = 0);
  // The same, of one element.
  float scalar(const std::string& name);
  // Tensors that the model does not need: counted and reported, never an error.
  void ignore(const std::string& name, std::string_view reason);
  void ignore_prefix(std::string_view prefix, std::string_view reason);

  LoadReport finish();

 private:
  const StoredTensor* take(const std::string& name, const Shape& shape);

  const WeightMap& map_;
  std::map<std::string, bool, std::less<>> seen_;  // true: consumed, false: ignored
  std::vector<std::string> faults_;
  std::vector<std::unique_ptr<StoredTensor>> made_;  // dummy weights
  LoadReport report_;
};

}  // namespace braid

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/dummy_formats.h"
#include "quant/weight.h"
#include "tensor/tensor.h"

namespace braid {

// One tensor of a file. `dtype_name` is what the file calls its type (for messages and reports).
struct StoredTensor {
  std::string name;       // canonical name, see WeightMap
  std::string file_name;  // its name in the file, if that differs
  std::string file;       // path of the file that holds it
  std::string dtype_name;
  Weight weight;             // format null: a type no kernel reads (integers, ...); the rest is set
  int64_t stored_bytes = 0;  // in the file; 0 if the type's size is unknown
  // Of a matrix that a quantised checkpoint stores in parts: the parts, and how to make the weight
  // of them. Until then `weight` has its shape only, and dtype_name its format.
  std::shared_ptr<const std::vector<StoredTensor>> parts;
  std::function<Weight()> convert;

  // The weight with its data.
  Weight payload() const { return convert ? convert() : weight; }
};

// All tensors of a checkpoint by name. safetensors and GGUF files fill it with the names they use;
// a model family then renames them to its canonical names (those of the Hugging Face checkpoint,
// without the prefix). Alternatively a map of random weights, which makes up whatever is asked of
// it.
class WeightMap {
 public:
  WeightMap() = default;

  // Weights of any name and shape, seeded by (seed, name): for benchmarks at real sizes. Values are
  // about N(0, 1/cols); vectors are near 1. Matrices come in their format of `formats`, or in
  // one of smaller blocks where its blocks do not divide a row; their memory is really filled,
  // unless `fill` is false: then matrices are deferred (quant/deferred_weight.h).
  static WeightMap dummy(uint64_t seed, const DummyFormats& formats, bool fill = true);

  // Matrices that are made of parts are deferred (quant/deferred_weight.h).
  void set_deferring(bool deferring) { deferring_ = deferring; }
  bool deferring() const { return deferring_; }
  // Of random weights: what is made up is also added there, as a checkpoint would hold it.
  void keep_dummies_in(std::shared_ptr<WeightMap> map) { made_ = std::move(map); }
  WeightMap* made() const { return made_.get(); }

  // Throws Error naming both files if the name is taken.
  void add(StoredTensor tensor);
  void remove(std::string_view name);
  // Renames every tensor by `rename(name)`; an empty result keeps the name. Throws Error when two
  // tensors get the same name.
  void rename(const std::function<std::string(std::string_view)>& rename);
  // The tensor, or nullptr.
  const StoredTensor* find(std::string_view name) const;

  bool is_dummy() const { return dummy_formats_.has_value(); }
  const DummyFormats& dummy_formats() const { return *dummy_formats_; }
  uint64_t dummy_seed() const { return dummy_seed_; }
  bool fills_dummy() const { return fills_dummy_; }
  size_t size() const { return tensors_.size(); }
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }
  // The checkpoint's path, for messages.
  const std::string& origin() const { return origin_; }
  void set_origin(std::string origin) { origin_ = std::move(origin); }

 private:
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::string origin_;
  std::optional<DummyFormats> dummy_formats_;
  uint64_t dummy_seed_ = 0;
  bool fills_dummy_ = true;
  bool deferring_ = false;
  std::shared_ptr<WeightMap> made_;
};

// What became of a checkpoint's tensors.
struct LoadReport {
  int64_t num_tensors = 0;   // in the files
  int64_t num_consumed = 0;  // bound to the model
  int64_t num_ignored = 0;   // named by an ignore rule of the model family, with the reason
  int64_t weight_bytes = 0;  // of the consumed ones, as stored
  int64_t num_parameters = 0;
  std::vector<std::string> ignored;                    // "name (reason)"
  std::map<std::string, int64_t> num_ignored_because;  // reason -> tensors
};
// "658 of 658 tensors consumed (25.2 B parameters, 14.1 GB)", plus how many were ignored and why.
std::string to_string(const LoadReport& report);

// Binds a map to a model, totally: each request names a tensor and its shape; finish() throws one
// Error that lists what was missing, misshapen, of an unreadable type, or left over, each with its
// file. The map must outlive the binder; what it hands out lives on its own.
class WeightBinder {
 public:
  explicit WeightBinder(const WeightMap& map) : map_(map) {}

  // Whether the checkpoint holds the tensor. A map of random weights holds no optional ones: false.
  bool has(std::string_view name) const;
  // A matrix or stack of matrices in any format, its payload aligned for its elements. On a fault,
  // records it and returns an empty Weight. The same tensor may be asked for again.
  Weight weight(const std::string& name, const Shape& shape);
  // A small tensor expanded to float32, with `offset` added to each element (norms stored as 1 +
  // w). Random weights come as the model needs them, so `offset` is not added to those. On a fault,
  // records it and returns zeros, so that the model can go on to the next one.
  Tensor f32(const std::string& name, const Shape& shape, float offset = 0);
  // The only element of a tensor of any shape. On a fault: 0.
  float scalar(const std::string& name);
  // The same of a number that must be from `smallest` to `largest`. It is no parameter.
  float scale(const std::string& name, float smallest, float largest);
  // A tensor of 32- or 64-bit integers in a safetensors file; they are no parameters. On a fault,
  // records it and returns nothing. Random weights: 0, 1, 2, ...
  std::vector<int64_t> integers(const std::string& name, const Shape& shape);
  // Tensors that the model does not need: counted and reported, never an error.
  void ignore(const std::string& name, std::string_view reason);
  void ignore_prefix(std::string_view prefix, std::string_view reason);

  // Call once, when all is bound.
  LoadReport finish();

 private:
  enum class Fate : uint8_t { kIgnored, kFaulty, kConsumed };
  enum class Kind : uint8_t { kNumbers, kIntegers };

  // The tensor, of a readable type and, if given, of this shape; null and a fault otherwise.
  const StoredTensor* take(const std::string& name, const Shape* shape, Kind kind = Kind::kNumbers);
  void consume(const std::string& name, const Shape& shape, int64_t bytes);
  void mark_ignored(const std::string& name, std::string_view reason);

  const WeightMap& map_;
  std::map<std::string, Fate, std::less<>> seen_;
  std::map<std::string, Weight, std::less<>> bound_;
  std::vector<std::string> faults_;
  LoadReport report_;
};

}  // namespace braid

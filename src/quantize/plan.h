#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/weight_map.h"
#include "quant/quant_format.h"
#include "quantize/module_kind.h"
#include "quantize/rounding.h"

namespace braid {

// What files say of keys and values.
enum class KvRecipe {
  kUnspecified,
  kInt8,        // a scale for each token and head, found as they come
  kInt8Static,  // a scale for each layer's keys and one for its values, from the calibration
};
std::string_view kv_recipe_name(KvRecipe kv);  // "none", "int8", "int8-static"

// Which matrices are to be stored how.
struct Recipe {
  // "w4a16" (groups of 4-bit codes), "w8a8" (int8, one scale a row) or "keep" (only what the rules
  // name changes); for GGUF files one of gguf_scheme_names().
  std::string scheme = "w4a16";
  bool gguf = false;         // what is planned is a GGUF file
  int64_t group_size = 128;  // of w4a16; 0: one scale a row
  bool asymmetric = false;   // w4a16: groups with a zero of their own
  bool strict = false;       // a group size that does not divide a width is an error
  bool head = false;         // the embedding and the head as well
  bool half_scales = false;  // w4 formats: scales are to be float16 numbers, not bfloat16 ones
  KvRecipe kv = KvRecipe::kUnspecified;

  // What differs from the defaults, in this order.
  struct Rule {
    // A kind ("experts"), a module ("layers.3.mlp.down_proj") or a pattern with * for it.
    std::string modules;
    std::string storage;  // "keep", "w4a16", "w8a8", or a format: "w4g32", "w8c", "q8_0"
  };
  std::vector<Rule> rules;
};

// What becomes of one tensor.
struct TensorPlan {
  std::string name;       // canonical
  std::string file_name;  // in the source
  ModuleKind kind = ModuleKind::kOther;
  Shape shape;
  std::string source_type;
  int64_t source_bytes = 0;
  const QuantFormat* format = nullptr;  // null: kept as it is
  bool per_row = false;                 // one scale a row, though the format has groups
  bool half_scales = false;             // scales are float16 numbers (GPTQ files)
  std::string note;                     // a group size that was replaced, ...
  // GGUF files: the names of what the tensor became, or why it is not in the file; the type in
  // which a tensor is kept, if that is another than the source's.
  std::vector<std::string> targets;
  std::string left_out, kept_as;
  // The order of its columns in the file, in runs of column_run, where rounding has to know it:
  // entry i is the source's run that is run i. 0: the order of the source.
  std::vector<int64_t> column_runs;
  int64_t column_run = 0;

  bool quantised() const { return format != nullptr; }
  int64_t num_parameters() const { return shape.num_elements(); }
  int64_t cols() const { return shape.dim(-1); }
  int64_t rows() const { return shape.num_elements() / cols(); }
};

// Whether a quantised tensor's format has a grid.
bool has_grid(const TensorPlan& tensor);
// Throws Error for formats without.
RoundingGrid grid_of(const TensorPlan& tensor);

// Whether experts are stored one by one.
bool has_single_experts(const WeightMap& weights);
// Of the decoder, as the tensors' names tell.
int64_t count_layers(const WeightMap& weights);

// All tensors of a model whose names are canonical, in the order of their names. Throws Error for
// rules that match nothing or cannot be followed, and for models that are quantised already.
std::vector<TensorPlan> plan_tensors(const WeightMap& weights, const Recipe& recipe);

}  // namespace braid

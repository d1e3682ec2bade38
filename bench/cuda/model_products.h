#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ops/linear/cuda/product_table.h"

namespace braid::cuda {

// A product of a model on a CUDA device, where neighbouring matrices are joined.
struct ModelProduct {
  std::string what;  // "queries, keys, values"
  ProductKind kind = ProductKind::kMatrix;
  int64_t experts = 0, picks = 0;  // a token meets so many
  int64_t rows = 0, cols = 0;      // gated: width and hidden size
  bool kept = false;               // bfloat16 where others are quantised
  bool few_tokens = false;         // of the last tokens of sequences alone
};

// Those of a text decoder of Gemma 4 or Qwen3-Next, each size once, gated blocks last; from the
// config.json in the folder. Throws Error.
std::vector<ModelProduct> model_products(const std::filesystem::path& folder);

}  // namespace braid::cuda

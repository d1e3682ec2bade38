#pragma once

#include <vector>

#include "engine/generation.h"
#include "engine/tiny_model.h"
#include "support/fresh_seed.h"

namespace braid::testing {

// Full and sliding layers (window 16), a mixture of experts, and a tokenizer of 304 tokens.
inline const LoadedModel& tiny_model() {
  static const LoadedModel model =
      LoadedModel::load(model_path("gguf/gemma4_moe_bf16.gguf").string());
  return model;
}

inline std::vector<int32_t> random_prompt(FreshRandom& random, int64_t length) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(2, 303));
  return ids;
}

inline GenerationRequest random_request(FreshRandom& random, int64_t max_new_tokens = 16) {
  GenerationRequest request = greedy_request(random_prompt(random, random.integer(1, 40)),
                                             random.integer(1, max_new_tokens));
  if (random.coin()) {
    request.sampling.temperature = 0.9f;
    request.sampling.top_k = static_cast<int32_t>(random.integer(0, 40));
    request.sampling.seed = static_cast<uint64_t>(random.integer(0, 1000));
    request.sampling_stream = static_cast<uint64_t>(random.integer(0, 1000));
  }
  if (random.coin(0.3)) request.sampling.repetition_penalty = 1.3f;
  return request;
}

// Page counts are those of sequences, whatever the steps were.
inline void expect_all_pages_free(const Engine& engine) {
  EXPECT_TRUE(engine.idle());
  for (int g = 0; g < engine.cache().num_groups(); ++g) {
    EXPECT_EQ(engine.cache().num_used_pages(g), 0) << "group " << g;
  }
}

}  // namespace braid::testing

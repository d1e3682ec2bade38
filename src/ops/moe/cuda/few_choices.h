#pragma once

// The choices of few tokens, found by each kernel that needs them (ExpertGroups::router): that
// takes less time than a kernel in front that finds them once.

#include <cstdint>

#include "ops/moe/moe.h"

namespace braid::cuda {

inline constexpr int kTokenBits = 3;
inline constexpr int kMostFewTokens = 1 << kTokenBits, kMostFewPairs = 128;
inline constexpr int kMostFewExperts = 512;

struct FewChoices {
  const float* logits;  // [tokens, experts]; null: the choices are in memory
  int64_t stride;
  const float* expert_scale;  // or null
  int experts, k, tokens;
  bool over_chosen;
};

inline FewChoices few_choices(const Router& router, int k) {
  if (router.logits.empty()) return {};
  return {.logits = router.logits.data<float>(),
          .stride = router.logits.row_stride(),
          .expert_scale = router.expert_scale.empty() ? nullptr : router.expert_scale.data<float>(),
          .experts = static_cast<int>(router.logits.dim(1)),
          .k = k,
          .tokens = static_cast<int>(router.logits.dim(0)),
          .over_chosen = router.softmax == RouterSoftmax::kChosen};
}

}  // namespace braid::cuda

#include "ops/moe/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu/split.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/moe/moe_kernels.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

// Descending, NaN last; equal values are not in order either way.
bool comes_before(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// Keeps the k best seen so far in order; later equals go behind earlier ones.
void select_experts(const float* logits, int64_t num_experts, int64_t k, int32_t* experts,
                    float* values) {
  int64_t kept = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const float logit = logits[expert];
    if (kept == k && !comes_before(logit, values[k - 1])) continue;
    int64_t place = kept < k ? kept++ : k - 1;
    for (; place > 0 && comes_before(logit, values[place - 1]); --place) {
      values[place] = values[place - 1];
      experts[place] = experts[place - 1];
    }
    values[place] = logit;
    experts[place] = static_cast<int32_t>(expert);
  }
}

// weights: the logits of the chosen, the largest first; `over`: those that the softmax runs over.
void weigh_experts(const int32_t* experts, const float* expert_scale, std::span<const float> over,
                   int64_t k, float* weights) {
  const float largest = weights[0];
  float sum = 0;
  for (const float logit : over) sum += std::exp(logit - largest);
  for (int64_t i = 0; i < k; ++i) weights[i] = std::exp(weights[i] - largest);
  for (int64_t i = 0; i < k; ++i) {
    weights[i] /= sum;
    if (expert_scale != nullptr) weights[i] *= expert_scale[experts[i]];
  }
}

ExpertGroups take_groups(Workspace& workspace, int64_t num_pairs, int64_t num_experts) {
  BRAID_CHECK(num_pairs <= std::numeric_limits<int32_t>::max(), "{} pairs", num_pairs);
  ExpertGroups groups;
  groups.offsets = workspace.take(DType::kI32, {num_experts + 1});
  groups.tokens = workspace.take(DType::kI32, {num_pairs});
  groups.places = workspace.take(DType::kI32, {num_pairs});
  return groups;
}

}  // namespace

void top_k_experts(Stream& stream, const TensorView& logits, const TensorView& expert_scale,
                   const TensorView& experts, const TensorView& weights, RouterSoftmax softmax) {
  BRAID_CHECK(logits.rank() == 2 && experts.rank() == 2 && experts.shape() == weights.shape() &&
                  experts.dim(0) == logits.dim(0),
              "logits {}, experts {}, weights {}", to_string(logits.shape()),
              to_string(experts.shape()), to_string(weights.shape()));
  const int64_t num_experts = logits.dim(1);
  const int64_t k = experts.dim(1);
  BRAID_CHECK(k >= 1 && k <= num_experts, "{} of {} experts", k, num_experts);
  BRAID_CHECK(
      expert_scale.empty() || (expert_scale.rank() == 1 && expert_scale.dim(0) == num_experts),
      "expert scale {}", to_string(expert_scale.shape()));
  if (logits.dim(0) == 0) return;
  const OpScope op(stream, "top_k_experts", [&] {
    const double elements = static_cast<double>(logits.num_elements());
    return OpWork{.activation_bytes = 4 * elements, .operations = elements};
  });
  if (!stream.is_cpu()) {
    return cuda::top_k_experts(stream, logits, expert_scale, experts, weights, softmax);
  }
  const float* scale = expert_scale.empty() ? nullptr : expert_scale.data<float>();
  split_rows(stream, logits.dim(0), num_experts + 16 * k, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      int32_t* chosen = experts.row<int32_t>(token);
      float* values = weights.row<float>(token);
      const float* all = logits.row<float>(token);
      select_experts(all, num_experts, k, chosen, values);
      const bool chosen_only = softmax == RouterSoftmax::kChosen;
      weigh_experts(chosen, scale,
                    {chosen_only ? values : all, size_t(chosen_only ? k : num_experts)}, k, values);
    }
  });
}

ExpertGroups group_by_expert(Stream& stream, Workspace& workspace, const TensorView& experts,
                             int64_t num_experts) {
  BRAID_CHECK(experts.rank() == 2, "experts {}", to_string(experts.shape()));
  const int64_t num_tokens = experts.dim(0);
  const int64_t k = experts.dim(1);
  const int64_t num_pairs = num_tokens * k;
  const OpScope op(stream, "group_by_expert", [&] {
    return OpWork{.activation_bytes = 3 * 4.0 * static_cast<double>(num_pairs)};
  });
  const ExpertGroups groups = take_groups(workspace, num_pairs, num_experts);
  if (!stream.is_cpu()) {
    cuda::group_by_expert(stream, experts, groups);
    return groups;
  }
  const std::span<int32_t> offsets = groups.offsets.span<int32_t>();
  const std::span<int32_t> tokens = groups.tokens.span<int32_t>();
  const std::span<int32_t> places = groups.places.span<int32_t>();

  // offsets[e + 1] counts the pairs of e, then becomes where they start, then where they end.
  std::fill(offsets.begin(), offsets.end(), 0);
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int32_t* chosen = experts.row<int32_t>(token);
    for (int64_t i = 0; i < k; ++i) {
      BRAID_CHECK(chosen[i] >= 0 && chosen[i] < num_experts, "expert {} of {}", chosen[i],
                  num_experts);
      ++offsets[chosen[i] + 1];
    }
  }
  int32_t start = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int32_t count = offsets[expert + 1];
    offsets[expert + 1] = start;
    start += count;
  }
  for (int64_t token = 0; token < num_tokens; ++token) {
    const int32_t* chosen = experts.row<int32_t>(token);
    for (int64_t i = 0; i < k; ++i) {
      const int32_t place = offsets[chosen[i] + 1]++;
      tokens[place] = static_cast<int32_t>(token);
      places[token * k + i] = place;
    }
  }
  return groups;
}

ExpertGroups route_to_experts(Stream& stream, Workspace& workspace, const TensorView& logits,
                              const TensorView& expert_scale, const TensorView& experts,
                              const TensorView& weights, RouterSoftmax softmax) {
  if (!stream.is_cpu() && !logits.empty()) {
    const OpScope op(stream, "route_to_experts", [&] {
      const double elements = static_cast<double>(logits.num_elements());
      return OpWork{.activation_bytes = 4 * elements, .operations = elements};
    });
    const ExpertGroups groups = take_groups(workspace, experts.num_elements(), logits.dim(1));
    if (cuda::route_to_experts(stream, logits, expert_scale, experts, weights, softmax, groups)) {
      return groups;
    }
    top_k_experts(stream, logits, expert_scale, experts, weights, softmax);
    cuda::group_by_expert(stream, experts, groups);
    return groups;
  }
  top_k_experts(stream, logits, expert_scale, experts, weights, softmax);
  return group_by_expert(stream, workspace, experts, logits.dim(1));
}

bool route_in_place(Stream& stream, Workspace& workspace, const Router& router,
                    const TensorView& experts, ExpertGroups& groups) {
  const TensorView& logits = router.logits;
  if (stream.is_cpu() || logits.empty()) return false;
  if (!cuda::can_route_in_place(stream, logits, experts.dim(1))) return false;
  groups = take_groups(workspace, experts.num_elements(), logits.dim(1));
  groups.router = router;
  return true;
}

void finish_routing(Stream& stream, ExpertGroups& groups, const TensorView& experts,
                    const TensorView& weights) {
  const Router router = groups.router;
  if (router.logits.empty()) return;
  groups.router = {};
  BRAID_CHECK(cuda::route_to_experts(stream, router.logits, router.expert_scale, experts, weights,
                                     router.softmax, groups),
              "logits {}", to_string(router.logits.shape()));
}

void combine_experts(Stream& stream, const TensorView& y, const ExpertGroups& groups,
                     const TensorView& experts, const TensorView& weights, const TensorView& out) {
  BRAID_CHECK(experts.rank() == 2 && experts.shape() == weights.shape(), "experts {}, weights {}",
              to_string(experts.shape()), to_string(weights.shape()));
  const int64_t k = experts.dim(1);
  const int64_t num_pairs = experts.dim(0) * k;
  BRAID_CHECK(y.rank() == 2 && out.rank() == 2 && y.dim(0) == num_pairs &&
                  out.dim(0) == experts.dim(0) && y.dim(1) == out.dim(1) &&
                  groups.places.num_elements() == num_pairs,
              "y {}, out {}, experts {}", to_string(y.shape()), to_string(out.shape()),
              to_string(experts.shape()));
  const int64_t width = out.dim(1);
  const OpScope op(stream, "combine_experts", [&] {
    const double pair_bytes = y.dtype() == DType::kBF16 ? 2 : 4;
    return OpWork{.activation_bytes = pair_bytes * static_cast<double>(num_pairs * width) +
                                      4.0 * static_cast<double>(out.dim(0) * width),
                  .operations = 2.0 * static_cast<double>(num_pairs * width)};
  });
  if (out.empty()) return;
  if (!stream.is_cpu()) return cuda::combine_experts(stream, y, groups, experts, weights, out);
  BRAID_CHECK(y.dtype() == DType::kF32, "rounded rows on the CPU");
  const MoeKernels& kernels = BRAID_KERNELS(kMoeKernels);
  split_rows(stream, out.dim(0), width * k, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int32_t* places = groups.places.data<int32_t>() + token * k;
      const float* factors = weights.row<float>(token);
      // Places ascend with the expert.
      int32_t last = -1;
      for (int64_t n = 0; n < k; ++n) {
        int64_t next = -1;
        for (int64_t i = 0; i < k; ++i) {
          if (places[i] > last && (next < 0 || places[i] < places[next])) next = i;
        }
        last = places[next];
        (n == 0 ? kernels.scaled_copy : kernels.scaled_add)(y.row<float>(last), factors[next],
                                                            out.row<float>(token), width);
      }
    }
  });
}

}  // namespace braid

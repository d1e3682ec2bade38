#pragma once

#include <cstdint>

#include "checkpoint/weight_map.h"
#include "layers/linear.h"
#include "tensor/tensor.h"

namespace braid {

// A head that computes few logits: the tokens are sorted into groups of equal size, each with a
// centroid; a row gets the logits of the groups whose centroids score best, and every other token
// the smallest of them minus 1. The table's rows are kept in the order of the groups.
class OrderedHead {
 public:
  struct Sizes {
    int64_t vocab_size = 0;
    int64_t width = 0;
    int64_t num_centroids = 0;  // divides vocab_size
    int64_t top_k = 0;
  };

  OrderedHead() = default;
  // Binds masked_embedding.centroids.weight, masked_embedding.token_ordering and the table
  // embed_tokens.weight; faults of their shapes show in binder.finish(). Throws Error naming
  // `origin` if the order is no permutation of the tokens.
  OrderedHead(Sizes sizes, WeightBinder& binder, const std::string& origin);

  // Logits [rows, vocab_size] of y [rows, width], in the step's workspace. Of each row alone: the
  // reference takes the smallest logit over all rows of a call.
  TensorView run(StepContext& step, const TensorView& y) const;

  void place(Placement& placement) { placement.place(centroids_, table_, token_order_); }

 private:
  Sizes sizes_;
  Linear centroids_;
  Weight table_;        // [centroids, tokens of each, width]
  Tensor token_order_;  // int32 [vocab_size]: the ids of its rows
};

}  // namespace braid

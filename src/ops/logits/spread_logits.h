#pragma once

#include "tensor/index_list.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// Puts the logits of some groups of tokens in their places; all other tokens of a row get the
// smallest of these minus 1.
// computed: float32 [rows · k, size]: the logits of the k groups of each row
// places:   int32 [rows · k]: where in `computed` choice c of row r is, at r · k + c
// groups:   int32 [rows, k]: which groups these are, all different
// token_order: [groups · size]: the tokens of group 0, then those of group 1, ...
// logits:   float32 [rows, vocab], vocab = groups · size
void spread_logits(Stream& stream, const TensorView& computed, const TensorView& places,
                   const TensorView& groups, const IndexList& token_order,
                   const TensorView& logits);

}  // namespace braid

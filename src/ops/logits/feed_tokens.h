#pragma once

#include "tensor/index_list.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// ids[i] = chosen[rows[i]][0], where rows[i] >= 0; the other ids stay. What is chosen below 0 (no
// token) becomes token 0: something must be computed, and nobody reads it.
// chosen: int32 [rows of an earlier step, columns]; ids: int32 [tokens].
void feed_tokens(Stream& stream, const TensorView& chosen, const IndexList& rows,
                 const TensorView& ids);

}  // namespace braid

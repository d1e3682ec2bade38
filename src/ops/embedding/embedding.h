#pragma once

#include "quant/weight.h"
#include "tensor/index_list.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// y[i] = scale · table[ids[i]], expanded to float32.  table: [vocabulary, width] in any format,
// y: [ids, width]. Ids must be in range.
void embedding(Stream& stream, const Weight& table, const IndexList& ids, float scale,
               const TensorView& y);

}  // namespace braid

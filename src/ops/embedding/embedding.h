#pragma once

#include <cstdint>
#include <span>

#include "quant/weight.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"

namespace braid {

// y[i] = scale · table[ids[i]], expanded to float32.  table: [vocabulary, width] in any format,
// y: [ids, width]. Ids must be in range.
void embedding(Stream& stream, const Weight& table, std::span<const int32_t> ids, float scale,
               const TensorView& y);

}  // namespace braid

#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/workspace.h"

namespace braid {

// What a step has to know of each row of logits, so that the rows themselves can stay where they
// are.
struct LogitsSummary {
  int32_t largest;  // index of the largest value, of equals the first; -1 if none is above -inf.
                    // NaN is passed over.
  int32_t finite;   // 0: the row holds a NaN or an infinity
};

// logits: [rows, vocab] float32; summaries: int32 [rows, 2], a LogitsSummary each.
void scan_logits(Stream& stream, Workspace& workspace, const TensorView& logits,
                 const TensorView& summaries);

}  // namespace braid

#include "ops/logits/feed_tokens.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/token_ops.h"
#include "tensor/profiler.h"

namespace braid {

void feed_tokens(Stream& stream, const TensorView& chosen, const IndexList& rows,
                 const TensorView& ids) {
  BRAID_CHECK(chosen.rank() == 2 && chosen.dtype() == DType::kI32 && ids.rank() == 1 &&
                  ids.dtype() == DType::kI32 && ids.dim(0) == rows.size(),
              "chosen {}, {} rows for ids {}", to_string(chosen.shape()), rows.size(),
              to_string(ids.shape()));
  const OpScope op(stream, "feed_tokens", [] { return OpWork{}; });
  if (ids.empty()) return;
  if (!stream.is_cpu()) return cuda::feed_tokens(stream, chosen, rows, ids);
  const std::span<const int32_t> from = rows.on_host();
  int32_t* out = ids.data<int32_t>();
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] < 0) continue;
    BRAID_CHECK(from[i] < chosen.dim(0), "row {} of {}", from[i], chosen.dim(0));
    out[i] = std::max(*chosen.row<int32_t>(from[i]), 0);
  }
}

}  // namespace braid

#include "ops/logits/spread_logits.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/cuda/token_ops.h"
#include "tensor/profiler.h"

namespace braid {

void spread_logits(Stream& stream, const TensorView& computed, const TensorView& places,
                   const TensorView& groups, const IndexList& token_order,
                   const TensorView& logits) {
  const int64_t rows = logits.dim(0), vocab = logits.dim(1);
  BRAID_CHECK(computed.rank() == 2 && groups.rank() == 2 && groups.dim(0) == rows &&
                  computed.dim(0) == groups.num_elements() &&
                  places.num_elements() == groups.num_elements() && token_order.size() == vocab &&
                  vocab % computed.dim(1) == 0,
              "computed {}, groups {}, {} tokens, logits {}", to_string(computed.shape()),
              to_string(groups.shape()), token_order.size(), to_string(logits.shape()));
  if (logits.empty()) return;
  const OpScope op(stream, "spread_logits", [&] {
    return OpWork{.activation_bytes =
                      4.0 * static_cast<double>(logits.num_elements() + computed.num_elements())};
  });
  if (!stream.is_cpu()) {
    return cuda::spread_logits(stream, computed, places, groups, token_order, logits);
  }
  const int64_t k = groups.dim(1), size = computed.dim(1);
  const std::span<const int32_t> order = token_order.on_host();
  const int32_t* place = places.data<int32_t>();
  stream.pool().parallel_for(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float smallest = std::numeric_limits<float>::infinity();
      for (int64_t c = 0; c < k; ++c) {
        const float* values = computed.row<float>(place[row * k + c]);
        smallest = std::min(smallest, *std::min_element(values, values + size));
      }
      float* out = logits.row<float>(row);
      std::fill_n(out, vocab, smallest - 1);
      for (int64_t c = 0; c < k; ++c) {
        const float* values = computed.row<float>(place[row * k + c]);
        const int32_t* ids = order.data() + groups.row<int32_t>(row)[c] * size;
        for (int64_t j = 0; j < size; ++j) out[ids[j]] = values[j];
      }
    }
  });
}

}  // namespace braid

#include "ops/embedding/embedding.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "quant/panels.h"
#include "tensor/profiler.h"

namespace braid {

void embedding(Stream& stream, const Weight& table, const IndexList& ids, float scale,
               const TensorView& y) {
  BRAID_CHECK(!table.empty() && table.shape.rank() == 2 && y.rank() == 2);
  BRAID_CHECK(y.dim(0) == ids.size() && y.dim(1) == table.cols(), "table {}, {} ids, y {}",
              to_string(table.shape), ids.size(), to_string(y.shape()));
  const OpScope op(stream, "embedding", table.format->name, [&] {
    const double tokens = static_cast<double>(y.dim(0));
    return OpWork{.weight_bytes = tokens * table.row_bytes(),
                  .activation_bytes = 4 * tokens * table.cols(),
                  .operations = tokens * table.cols()};
  });
  if (y.dim(0) == 0) return;
  if (!stream.is_cpu()) return cuda::embedding(stream, table, ids, scale, y);
  const std::span<const int32_t> rows = ids.on_host();
  stream.pool().parallel_for(y.dim(0), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      BRAID_CHECK(rows[i] >= 0 && rows[i] < table.rows(), "id {} of {}", rows[i], table.rows());
      float* const out = y.row<float>(i);
      expand_row(table, rows[i], out);
      for (int64_t c = 0; c < table.cols(); ++c) out[c] *= scale;
    }
  });
}

}  // namespace braid

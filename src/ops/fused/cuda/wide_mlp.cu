#include <cstdlib>

#include "ops/cuda/cuda_ops.h"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/linear/cuda/weight_stream.h"
#include "ops/linear/cuda/wide_products.h"

namespace braid::cuda {

bool wide_gated_mlp(Stream& stream, Workspace& workspace, const GatedMlpCall& call) {
  static const char* const setting = std::getenv("BRAID_WIDE");
  const int level = setting == nullptr ? 1 : std::atoi(setting);
  const int width = static_cast<int>(call.down->cols());
  const int experts = call.groups == nullptr ? 0 : static_cast<int>(call.gate->shape.dim(0));
  const int rows = static_cast<int>(call.out.dim(0));
  if (stream.cuda().deterministic()) return false;
  if (level == 0 || (experts == 0 && level < 2)) return false;
  if (experts == 0 && rows <= kMostStreamTokens) return false;
  if (call.x->packed.rank() != 2 || width % 64 != 0) return false;
  const auto products = [&](const Weight& w, const LinearInput& x) {
    Products p = products_of(w, x);
    p.tokens = rows;
    p.experts = experts;
    p.offsets = experts > 0 ? call.groups->offsets.data<int32_t>() : nullptr;
    return p;
  };
  Products gate = products(*call.gate, *call.x);
  gate.rows = width;
  const auto can = [&](const Weight& w) {
    return w.empty() || wide_products_can(stream, products(w, *call.x));
  };
  if (!can(*call.gate) || !can(*call.up) || !can(*call.down)) return false;
  const PackedRows activated(workspace, rows, width);
  wide_gated_products(stream, gate, call.up->empty() ? nullptr : call.up->data, call.activation,
                      experts > 0 ? call.groups->tokens.data<int32_t>() : nullptr,
                      activated.rows().data, activated.rows().stride);
  const LinearInput input = activated.input(call.out);
  if (experts == 0) {
    cuda::linear(stream, *call.down, input, call.out, {});
    return true;
  }
  Products down = products(*call.down, input);
  down.y = call.out.data<float>();
  down.y_stride = call.out.row_stride();
  wide_products(stream, down);
  stream.cuda().finish_op("gated_mlps");
  return true;
}

}  // namespace braid::cuda

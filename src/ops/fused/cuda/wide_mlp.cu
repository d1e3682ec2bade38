#include "ops/cuda/cuda_ops.h"
#include "ops/fused/cuda/packed_rows.cuh"
#include "ops/linear/cuda/wide_products.h"

namespace braid::cuda {

bool wide_gated_mlp(Stream& stream, Workspace& workspace, const GatedMlpCall& call) {
  const int width = static_cast<int>(call.down->cols());
  const int rows = static_cast<int>(call.out.dim(0));
  if (call.x->packed.rank() != 2 || width % 64 != 0) return false;
  const int experts = static_cast<int>(call.gate->shape.dim(0));
  const auto products = [&](const Weight& w, const LinearInput& x) {
    Products p = products_of(w, x);
    p.tokens = rows;
    p.experts = experts;
    p.offsets = call.groups->offsets.data<int32_t>();
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
                      call.groups->tokens.data<int32_t>(), activated.rows());
  wide_products(stream, products(*call.down, activated.input(call.out)),
                {static_cast<uint16_t*>(call.out.raw()), call.out.row_stride()});
  stream.cuda().finish_op("gated_mlps");
  return true;
}

}  // namespace braid::cuda

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/fused/cuda/token_inputs.h"
#include "ops/linear/cuda/few_rows.h"
#include "ops/linear/cuda/int8_products.h"
#include "ops/linear/cuda/product_paths.h"
#include "ops/linear/cuda/products.h"
#include "ops/linear/cuda/tensor_core.cuh"
#include "quant/device_tiles.h"

namespace braid::cuda {
namespace {

// Rounds to bfloat16; eight columns a thread.
__global__ void round_inputs(Rows<const float> x, int cols, Rows<uint16_t> packed,
                             int packed_cols) {
  wait_for_inputs();
  const int64_t token = blockIdx.y;
  const float* in = x[token];
  const int col = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (col >= packed_cols) return;
  float v[8];
  if (reinterpret_cast<uintptr_t>(in) % 16 == 0 && col + 8 <= cols) {
    *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(in + col);
    *reinterpret_cast<float4*>(v + 4) = *reinterpret_cast<const float4*>(in + col + 4);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = col + i < cols ? in[col + i] : 0;
  }
  *reinterpret_cast<uint4*>(packed[token] + col) =
      make_uint4(pack_bfloat16(v[0], v[1]), pack_bfloat16(v[2], v[3]), pack_bfloat16(v[4], v[5]),
                 pack_bfloat16(v[6], v[7]));
}

}  // namespace

Products products_of(const Weight& w, const LinearInput& x) {
  Products products{};
  products.tiles = in_tiles(*w.format);
  BRAID_CHECK(products.tiles || !w.format->panels(), "{} weights on a CUDA device", w.format->name);
  products.format = w.format->id;
  products.weights = reinterpret_cast<const uint8_t*>(w.data);
  products.row_bytes = w.row_bytes();
  products.matrix_bytes = w.matrix_bytes();
  products.rows = static_cast<int>(w.rows());
  products.cols = static_cast<int>(w.cols());
  if (x.packed.rank() == 2) {
    products.packed = reinterpret_cast<const uint16_t*>(x.packed.raw());
    products.packed_stride = x.packed.row_stride();
  } else {
    products.x = x.x.data<float>();
    products.x_stride = x.x.row_stride();
  }
  products.tokens = static_cast<int>(x.x.dim(0));
  return products;
}

namespace {

Products make_products(const Weight& w, const LinearInput& x, const TensorView& y) {
  Products products = products_of(w, x);
  products.y = y.data<float>();
  products.y_stride = y.row_stride();
  products.tokens = static_cast<int>(y.dim(0));
  return products;
}

}  // namespace

LinearInput prepare_linear_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                 const InputRounding& rounding) {
  LinearInput input;
  input.x = x;
  if (rounding.precision == ActivationPrecision::kF32) return input;
  if (takes_token_codes(stream, rounding, x.dim(1))) {
    input = plain_token_codes(stream, workspace, x, rounding.scales.per_block);
    stream.cuda().finish_op("prepare_linear_input");
    return input;
  }
  input.precision = ActivationPrecision::kBF16;
  const int64_t tokens = x.dim(0), cols = x.dim(1);
  const int64_t padded = ceil_divide<int64_t>(cols, kPackedColumns) * kPackedColumns;
  const TensorView packed = workspace.take(DType::kBF16, {tokens, padded});
  input.packed = packed.columns(0, cols + cols % 2);
  constexpr int kThreads = 128;
  const dim3 grid(static_cast<unsigned>(ceil_divide<int64_t>(padded, 8 * kThreads)),
                  static_cast<unsigned>(tokens));
  launch(stream, round_inputs, grid, dim3(kThreads), 0,
         Rows<const float>{x.data<float>(), x.row_stride()}, static_cast<int>(cols),
         Rows<uint16_t>{static_cast<uint16_t*>(packed.raw()), padded}, static_cast<int>(padded));
  stream.cuda().finish_op("prepare_linear_input");
  return input;
}

bool linear(Stream& stream, const Weight& w, const LinearInput& x, const TensorView& y,
            int64_t next_bytes) {
  // What rings of weights hold, about.
  const int64_t ring_bytes = int64_t{stream.cuda().num_multiprocessors()} << 17;
  bool ahead = false;
  if (reads_token_codes(w, x)) {
    Int8Products products = int8_products_of(w, x);
    products.y = y.data<float>();
    products.y_stride = y.row_stride();
    int8_products(stream, products);
  } else {
    const Products products = make_products(w, x, y);
    const ProductChoice choice = choose(stream, products);
    ahead = choice.path == ProductPath::kFewRows && products.tokens == 1 && next_bytes > ring_bytes;
    if (ahead) {
      few_rows_products(stream, products, true);
    } else {
      run_path(stream, products, choice);
    }
  }
  stream.cuda().finish_op("linear", ahead);
  return !ahead;
}

void grouped_linear(Stream& stream, const Weight& w, const LinearInput& x, const IndexList& offsets,
                    const TensorView& y) {
  const int experts = static_cast<int>(w.shape.dim(0));
  if (reads_token_codes(w, x)) {
    Int8Products products = int8_products_of(w, x);
    products.y = y.data<float>();
    products.y_stride = y.row_stride();
    products.experts = experts;
    products.offsets = on_device(stream.cuda(), offsets);
    int8_products(stream, products);
  } else {
    Products products = make_products(w, x, y);
    products.experts = experts;
    products.offsets = on_device(stream.cuda(), offsets);
    run_path(stream, products, choose(stream, products));
  }
  stream.cuda().finish_op("grouped_linear");
}

}  // namespace braid::cuda

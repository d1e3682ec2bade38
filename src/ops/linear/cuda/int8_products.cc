#include "ops/linear/cuda/int8_products.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/cuda/product_paths.h"
#include "quant/device_tiles.h"

namespace braid::cuda {

bool takes_token_codes(Stream& stream, const InputRounding& rounding, int64_t cols) {
  return rounding.precision == ActivationPrecision::kInt8 && rounding.scales.per_token &&
         cols % 32 == 0 && cols <= kMostTokenCodes && has_int8_products(stream);
}

bool reads_token_codes(const Weight& w, const LinearInput& x) {
  return x.token_codes.rank() == 2 && w.format->id == FormatId::kW8C && in_tiles(*w.format);
}

Int8Products int8_products_of(const Weight& w, const LinearInput& x) {
  return {.weights = reinterpret_cast<const uint8_t*>(w.data),
          .panel_bytes = kTileRows * w.row_bytes(),
          .matrix_bytes = w.matrix_bytes(),
          .rows = static_cast<int>(w.rows()),
          .cols = static_cast<int>(w.cols()),
          .codes = static_cast<const int8_t*>(x.token_packed.raw()),
          .codes_stride = x.token_packed.row_stride(),
          .scales = x.token_scales.data<float>(),
          .tokens = static_cast<int>(x.x.dim(0))};
}

void int8_products(Stream& stream, const Int8Products& products) {
  BRAID_CHECK(
      products.codes_stride % 32 == 0 && reinterpret_cast<uintptr_t>(products.codes) % 16 == 0,
      "rows of {} codes", products.codes_stride);
  run_path(stream, products, choose(stream, products));
}

}  // namespace braid::cuda

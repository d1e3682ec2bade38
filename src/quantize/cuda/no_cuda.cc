#include "base/error.h"
#include "quantize/cuda/device_gptq.h"
#include "quantize/cuda/matrix_library.h"

namespace braid::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error("this build has no CUDA backend; configure with the preset 'cuda'");
}

}  // namespace

void multiply(Stream&, const DeviceProduct&) { refuse(); }
DeviceGrid device_grid(const RoundingGrid&) { refuse(); }
void expand(Stream&, FormatId, const void*, int64_t, float*) { refuse(); }
void split(Stream&, const float*, int64_t, int64_t, int64_t, const SplitRows&) { refuse(); }
void finish_hessian(Stream&, float*, int64_t, float) { refuse(); }
void take_diagonal(Stream&, const float*, int64_t, float*) { refuse(); }
void fill_reversed(Stream&, const float*, const int32_t*, int64_t, double, double*, int64_t) {
  refuse();
}
int64_t inverse_scratch(int64_t) { refuse(); }
void invert_factor(Stream&, double*, int64_t, int64_t, double*, int32_t*) { refuse(); }
void take_upper(Stream&, const double*, int64_t, int64_t, float*) { refuse(); }
void fit_scales(Stream&, const DeviceRows&, const float*, const float*, bool) { refuse(); }
void round_codes(Stream&, const DeviceRows&, const float*) { refuse(); }
void permute_columns(Stream&, const float*, const int32_t*, int64_t, int64_t, float*) { refuse(); }
void add_permuted(Stream&, const float*, const float*, const int32_t*, int64_t, int64_t, float*) {
  refuse();
}
void round_columns(Stream&, const DeviceRows&, const ColumnBlock&) { refuse(); }
void take_losses(Stream&, const DeviceRows&, const float*, float*) { refuse(); }
void scale_to(Stream&, const float*, int64_t, float, float*) { refuse(); }
void subtract_scaled(Stream&, const float*, const float*, int64_t, float, float*) { refuse(); }
void take_centred(Stream&, const DeviceRows&, int64_t, float*, int64_t) { refuse(); }
void step_scales(Stream&, const DeviceRows&, const ScaleStep&) { refuse(); }
void step_codes(Stream&, const DeviceRows&, const CodeStep&) { refuse(); }
void row_dots(Stream&, const float*, const float*, int64_t, int64_t, double*) { refuse(); }

}  // namespace braid::cuda

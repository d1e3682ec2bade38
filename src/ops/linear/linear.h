#pragma once

#include <cstdint>

#include "quant/weight.h"
#include "tensor/index_list.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/workspace.h"

namespace braid {

// To what the inputs of a matrix product are rounded; products are accumulated in float32 (int8:
// exactly within 16 or 32 inputs that share a scale, then in float32).
//   kF32   not at all. Quantised weights are expanded block by block in registers or cache.
//   kBF16  to bfloat16 (nearest even).
//   kInt8  symmetric int8 with one float32 scale per 32 inputs, for block-quantised weights; with
//          one per token for weights of one scale a row (w8c), whose products are then exact but
//          for the scaling at the end. Weights of plain formats take kF32.
//          On a CUDA device weights of one scale a row take it from Hopper on, if they lie as
//          tiles (quant/device_tiles.h); all else is as under kBF16.
// An input x of a group of 32, or of a token, with largest magnitude m moves by at most
// m / 254 · (1 + 2^-16); an output by Σ |w| times that.
enum class ActivationPrecision { kF32, kBF16, kInt8 };

// Which scales kInt8 prepares inputs with: those of the weights that will read them. On a CUDA
// device per_block stands for all that do not read scales of tokens, which get bfloat16.
struct Int8Scales {
  bool per_block = true;
  bool per_token = false;

  // Adds what a weight of this format reads.
  void add(const QuantFormat& format) {
    if (format.has_row_header()) {
      per_token = true;
    } else if (!format.plain()) {
      per_block = true;
    }
  }
  bool operator==(const Int8Scales&) const = default;
};

// How an input is to be prepared for the matrices that read it.
struct InputRounding {
  ActivationPrecision precision = ActivationPrecision::kF32;
  Int8Scales scales;
  bool operator==(const InputRounding&) const = default;
};

// Inputs of one or more products, prepared once. x: [tokens, cols] float32. Views live in the
// workspace, except that x may be the caller's.
struct LinearInput {
  ActivationPrecision precision = ActivationPrecision::kF32;
  TensorView x;             // float32; under kBF16 already rounded (on a CUDA device: as it was)
  TensorView codes;         // kInt8: int8 [tokens, cols], -127 to 127
  TensorView scales;        // kInt8: float32 [tokens, cols / 32]
  TensorView sums;          // kInt8: int32 [tokens, cols / 16], sums of codes
  TensorView token_codes;   // kInt8 per token: int8 [tokens, cols], -127 to 127 (on a CUDA device
                            // as kernels read them)
  TensorView token_scales;  // kInt8 per token: float32 [tokens]
  TensorView token_packed;  // the codes as kernels read them
  TensorView packed;  // kBF16: bfloat16 [tokens, cols rounded up to even], where kernels multiply
                      // bfloat16 pairs; otherwise empty
};

// kInt8 needs cols to be a multiple of 32 and falls back to kF32 (printed once) otherwise. Under
// kInt8 a group of 32 (or a token) with an infinity or NaN gets a scale that is not a number, and
// one whose largest magnitude is below 2^-100 counts as zero. Weights whose scales were not asked
// for, and weights of one scale a row that are wider than 65536 (on a CUDA device: 16384, and then
// kBF16), take kF32.
LinearInput prepare_linear_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                 ActivationPrecision precision, Int8Scales int8_scales = {});
inline LinearInput prepare_linear_input(Stream& stream, Workspace& workspace, const TensorView& x,
                                        const InputRounding& rounding) {
  return prepare_linear_input(stream, workspace, x, rounding.precision, rounding.scales);
}

// y[t, r] = Σ_c w[r, c] · x[t, c].  w: [rows, cols], x: [tokens, cols], y: [tokens, rows] float32,
// rows may be strided. Each output is summed in an order that depends on cols, format and precision
// alone: not on tokens, threads or neighbours.
//
// On a CUDA device: int8 products are exact but for the scaling at the end, and the CPU's to the
// bit; under kBF16 the tensor cores multiply, and weights of other formats than
// float32 are rounded to bfloat16 on the way; under kF32 all is float32. The order of a sum depends
// on the format and the matrix's size as well, and with more tokens than the kernels for few take
// (bfloat16: 8, or from Hopper on 32 if the columns are a multiple of 64, and 64 if the matrix is
// small; quantised rows 32, tiles and kF32 64; experts 8 each on average) on the number of tokens,
// unless the stream is deterministic. Weights must lie at a multiple of 16 bytes, as in files or as
// tiles (quant/device_tiles.h).
void linear(Stream& stream, const Weight& w, const LinearInput& x, const TensorView& y);

// The same in front of an op that begins with so many bytes of weights, whose input was made before
// x. For one token and many of them a CUDA device asks for these weights while x is still being
// made. True: it does not, and that op's input is complete when it begins (GatedMlpCall::early).
bool linear_in_front(Stream& stream, const Weight& w, const LinearInput& x, const TensorView& y,
                     int64_t next_bytes);

// One product per expert on its own rows: rows [offsets[e], offsets[e+1]) of x meet expert e's
// matrix. w: [experts, rows, cols]; x: [tokens, cols] sorted by expert; offsets: experts + 1
// values, from 0 to tokens; y: [tokens, rows]. Experts without tokens are not read.
void grouped_linear(Stream& stream, const Weight& w, const LinearInput& x, const IndexList& offsets,
                    const TensorView& y);

}  // namespace braid

#pragma once

#include <cstdint>
#include <span>

#include "ops/gated_delta/recurrent_store.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/workspace.h"

namespace braid {

// Which value heads go with key head j (value_heads = ratio · key_heads).
enum class ValueHeadOrder {
  kGrouped,  // j·ratio … j·ratio + ratio − 1 (Hugging Face)
  kTiled,    // j, j + key_heads, j + 2·key_heads, … (GGUF files of Qwen3.5)
};

// All float32; rows may be strided.
struct GatedDeltaInputs {
  TensorView q, k;     // [tokens, key_heads, key_dim], as they leave the convolution
  TensorView v;        // [tokens, value_heads, value_dim]
  TensorView b;        // [tokens, value_heads]; β = sigmoid(b)
  TensorView a;        // [tokens, value_heads]; g = rate · softplus(a + dt_bias)
  TensorView rate;     // [value_heads]; −exp(A_log), at most 0
  TensorView dt_bias;  // [value_heads]
};

// Rows from which kAuto takes a chunk, which is then faster.
inline constexpr int64_t kMinDeltaChunkRows = 48;

// How the rows of a sequence are computed. Both forms agree to rounding, and leave the same state
// to rounding.
enum class GatedDeltaForm {
  kAuto,       // recurrent for logged rows and a partial chunk of few rows, else chunks
  kRecurrent,  // token by token; the only form that logs
  kChunks,     // 64 tokens at a time, as matrix products; chunks restart at the first row
};

struct GatedDeltaOptions {
  float epsilon = 1e-6f;  // of the L2 norms of q and k
  ValueHeadOrder order = ValueHeadOrder::kGrouped;
  GatedDeltaForm form = GatedDeltaForm::kAuto;
  // Chunks may round what they multiply to bfloat16, where a device gains by it; sums, decays and
  // the state stay float32.
  bool rounded = false;
};

// The gated delta rule over each sequence's rows, from the state in its slot, which it updates (or,
// for logged rows, leaves and logs). Per value head, with q and k of its key head divided by
// √(Σ x² + epsilon), and q by √key_dim besides:
//   S ← e^g·S;  d = β·(v − Sᵀk);  S ← S + k·dᵀ;  out = Sᵀq
// Yang, Kautz, Hatamizadeh: "Gated Delta Networks", 2024; chunks in the WY form.
// out: [tokens, value_heads, value_dim]. A sequence's result does not depend on the others nor on
// the number of threads. A sequence without rows is left as it is.
void gated_delta(Stream& stream, Workspace& workspace, const GatedDeltaInputs& inputs,
                 const RecurrentLayer& layer, std::span<const RecurrentRows> sequences,
                 const GatedDeltaOptions& options, const TensorView& out);

}  // namespace braid

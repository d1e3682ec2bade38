#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

// Rows of scratch are padded with zeros to multiples of this many floats.
inline constexpr int64_t kDeltaPadding = 32;
// State rows that the recurrent kernel takes at once.
inline constexpr int64_t kDeltaStateRows = 4;

// Tokens of one value head, applied one after the other.
struct DeltaRows {
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t key_stride = 0;        // between rows of keys and queries
  float* state = nullptr;        // [value_dim, key_dim]
  bool state_is_zero = false;    // whatever memory holds
  int64_t log_token_stride = 0;  // between the updates of the log's tokens

  // First the tokens of the log,
  int64_t num_replayed = 0;
  const float* replayed_keys = nullptr;  // [num_replayed, key_stride]
  const float* replayed_decays = nullptr;
  const float* replayed_updates = nullptr;  // [num_replayed, value_dim], log_token_stride apart

  // then the rows.
  int64_t num_rows = 0;
  const float* keys = nullptr;     // [num_rows, key_stride], normalised
  const float* queries = nullptr;  // and divided by √key_dim
  const float* decays = nullptr;
  const float* betas = nullptr;
  const float* values = nullptr;
  int64_t value_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;

  // Of logged rows: where d goes (perhaps over replayed_updates), and room for
  // [kDeltaStateRows, key_dim]; the state is left as it was before the rows.
  float* logged_updates = nullptr;
  float* running = nullptr;
};

struct DeltaRecurrentKernels {
  // out = x · factor / √(Σ x² + epsilon), followed by zeros up to a multiple of kDeltaPadding.
  void (*normalize)(const float* x, int64_t n, float epsilon, float factor, float* out);
  void (*run)(const DeltaRows& rows);
};

BRAID_DECLARE_KERNELS(DeltaRecurrentKernels, kDeltaRecurrentKernels)

}  // namespace braid

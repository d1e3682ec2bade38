#pragma once

#include <cstdint>

#include "ops/cpu/dispatch.h"

namespace braid {

inline constexpr int64_t kDeltaChunkTokens = 64;
// Between rows of matrices [·, kDeltaChunkTokens]. Not a power of two: columns would share few
// places of the cache.
inline constexpr int64_t kDeltaChunkStride = kDeltaChunkTokens + 16;
// Values of a panel, the most that any instruction set takes.
inline constexpr int64_t kDeltaMaxPanel = 32;

// At most kDeltaChunkTokens tokens of one key head.
struct DeltaChunk {
  int64_t num_tokens = 0;
  int64_t key_dim = 0;
  int64_t key_stride = 0;
  const float* keys = nullptr;     // [num_tokens, key_stride], normalised
  const float* queries = nullptr;  // and divided by √key_dim
  // Filled in by products():
  float* keys_transposed = nullptr;  // [key_dim, kDeltaChunkStride]
  float* key_products = nullptr;     // k_i · k_j and q_i · k_j for j <= i:
  float* query_products = nullptr;   // [num_tokens, kDeltaChunkStride]
};

// One value head's part of a chunk.
struct DeltaChunkHead {
  int64_t value_dim = 0;
  float* panels = nullptr;  // the state, as load_panels() writes it
  const float* betas = nullptr;
  const double* log_decays = nullptr;    // γ: the sum of g since the chunk's start
  const float* decays = nullptr;         // e^γ
  const float* decays_to_end = nullptr;  // e^(γ of the last token − γ)
  const float* values = nullptr;
  int64_t value_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  // Room:
  float* couplings = nullptr;  // [kDeltaChunkTokens, kDeltaChunkStride]
  float* weights = nullptr;    // [kDeltaChunkTokens, kDeltaChunkStride]
  float* updates = nullptr;    // [kDeltaChunkTokens, kDeltaMaxPanel]
};

struct DeltaChunkKernels {
  // A state [value_dim, key_dim] to panels of neighbouring values, [key_dim, panel width] each, and
  // back. The panel width divides kDeltaMaxPanel; the last panel is filled up with zeros.
  void (*load_panels)(const float* state, int64_t value_dim, int64_t key_dim, float* panels);
  void (*store_panels)(const float* panels, int64_t value_dim, int64_t key_dim, float* state);
  void (*products)(const DeltaChunk& chunk);
  void (*run)(const DeltaChunk& chunk, const DeltaChunkHead& head);
};

BRAID_DECLARE_KERNELS(DeltaChunkKernels, kDeltaChunkKernels)

}  // namespace braid

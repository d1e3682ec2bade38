#include "ops/fused/attention_heads.h"

#include "base/check.h"
#include "ops/attention/attention.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

OpWork heads_work(const TensorView& q, int64_t other_elements) {
  const double elements = static_cast<double>(q.num_elements() + other_elements);
  return {.activation_bytes = 8 * elements, .operations = 8 * elements};
}

}  // namespace

void prepare_queries(Stream& stream, const TensorView& q, const HeadOptions& options) {
  BRAID_CHECK(q.rank() == 3, "q {}", to_string(q.shape()));
  if (!stream.is_cpu() && !q.empty()) {
    const OpScope op(stream, "prepare_queries", [&] { return heads_work(q, 0); });
    if (cuda::prepare_heads(stream, q, {}, {}, options, {}, {})) return;
  }
  rms_norm(stream, q, options.q_norm, options.epsilon, q);
  rope(stream, q, options.cos, options.sin, options.pair_distance);
}

void prepare_heads(Stream& stream, Workspace& workspace, const TensorView& q, const TensorView& k,
                   const TensorView& v, const HeadOptions& options,
                   std::span<const SequenceRows> sequences, const PagedKv& cache) {
  BRAID_CHECK(k.rank() == 3 && k.shape() == v.shape() && q.dim(0) == k.dim(0) &&
                  q.dim(2) == k.dim(2) && k.dim(1) == cache.num_kv_heads(),
              "q {}, k {}, v {}", to_string(q.shape()), to_string(k.shape()), to_string(v.shape()));
  if (!stream.is_cpu() && !q.empty()) {
    const OpScope op(stream, "prepare_heads", [&] { return heads_work(q, 2 * k.num_elements()); });
    if (cuda::prepare_heads(stream, q, k, v, options, sequences, cache)) return;
  }
  prepare_queries(stream, q, options);
  // Values first: they may be the keys as projected.
  TensorView values = v;
  if (v.raw() == k.raw()) {
    BRAID_CHECK(options.normed_values, "values that are the keys need a norm");
    values = workspace.take(DType::kF32, v.shape());
  }
  if (options.normed_values) rms_norm(stream, v, TensorView(), options.epsilon, values);
  rms_norm(stream, k, options.k_norm, options.epsilon, k);
  rope(stream, k, options.cos, options.sin, options.pair_distance);
  write_kv(stream, k, values, sequences, cache);
}

}  // namespace braid

#include "ops/attention/cuda/paged_store.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/fused/cuda/head.cuh"

namespace braid::cuda {
namespace {

constexpr int kWarps = 4;

struct HeadArguments {
  Rows<float> q;
  Rows<const float> k, v;
  const float* q_norm;
  const float* k_norm;
  bool normed_values;
  float epsilon;
  Rows<const float> cos, sin;
  int pairs, distance;
  int heads, kv_heads;
  int64_t num_queries;  // heads of all tokens
  int64_t num_keys;     // heads of all stored rows
  KvTable table;
};

// In the row at `at` of a store.
template <int kDim, typename T>
__device__ void put_row(Head<kDim>& head, const PagedRows<T>& store, int64_t at, int lane) {
  if constexpr (sizeof(T) == 1) {
    const float scale = head.to_codes(store.fixed_scale);
    if (lane == 0) store.scales[at / kDim] = scale;
  }
  head.store(store.data + at, lane);
}

// A warp takes a query head, or a key head with its values.
template <int kDim, typename T>
__global__ void __launch_bounds__(kWarps* kWarp)
    heads_kernel(HeadArguments args, PagedRows<T> keys, PagedRows<T> values) {
  __shared__ alignas(16) float scratch[kWarps][kDim];
  wait_for_inputs();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  Head<kDim> head;
  if (index < args.num_queries) {
    const int64_t token = index / args.heads;
    float* row = args.q[token] + index % args.heads * kDim;
    head.load(row, lane);
    head.norm(args.q_norm, args.epsilon, lane);
    head.turn(args.cos[token], args.sin[token], args.pairs, args.distance, scratch[warp], lane);
    head.store(row, lane);
    return;
  }
  const int64_t key = index - args.num_queries;
  if (key >= args.num_keys) return;
  const int64_t entry = key / args.kv_heads;
  const int kv_head = static_cast<int>(key % args.kv_heads);
  const DeviceSequence sequence = args.table.sequences[args.table.row_sequences[entry]];
  const int row = static_cast<int>(entry) - sequence.first_entry;
  const int64_t token = sequence.first_row + row;
  const int64_t at =
      keys.offset(args.table.pages(sequence), sequence.num_pages, sequence.first_position + row);
  head.load(args.v[token] + kv_head * kDim, lane);
  if (args.normed_values) head.norm(args.epsilon);
  put_row(head, values, at + values.head_offset(kv_head), lane);
  head.load(args.k[token] + kv_head * kDim, lane);
  head.norm(args.k_norm, args.epsilon, lane);
  head.turn(args.cos[token], args.sin[token], args.pairs, args.distance, scratch[warp], lane);
  put_row(head, keys, at + keys.head_offset(kv_head), lane);
}

template <int kDim, typename T>
void launch_heads(Stream& stream, const HeadArguments& args, const PagedKv& cache) {
  const int64_t warps = args.num_queries + args.num_keys;
  PagedRows<T> keys{}, values{};
  if (args.num_keys > 0) {
    keys = PagedRows<T>(cache.keys, cache.key_scales, cache.static_scales.key);
    values = PagedRows<T>(cache.values, cache.value_scales, cache.static_scales.value);
  }
  launch(stream, heads_kernel<kDim, T>, static_cast<unsigned>(ceil_divide<int64_t>(warps, kWarps)),
         kWarps * kWarp, 0, args, keys, values);
}

template <typename T>
bool launch_heads(Stream& stream, int64_t dim, const HeadArguments& args, const PagedKv& cache) {
  switch (dim) {
    case 64:
      launch_heads<64, T>(stream, args, cache);
      return true;
    case 128:
      launch_heads<128, T>(stream, args, cache);
      return true;
    case 256:
      launch_heads<256, T>(stream, args, cache);
      return true;
    case 512:
      launch_heads<512, T>(stream, args, cache);
      return true;
    default:
      return false;
  }
}

}  // namespace

bool prepare_heads(Stream& stream, const TensorView& q, const TensorView& k, const TensorView& v,
                   const HeadOptions& options, std::span<const SequenceRows> sequences,
                   const PagedKv& cache, bool queries) {
  HeadArguments args{.q = rows_of<float>(q),
                     .q_norm = options.q_norm.data<float>(),
                     .normed_values = options.normed_values,
                     .epsilon = options.epsilon,
                     .cos = rows_of<const float>(options.cos),
                     .sin = rows_of<const float>(options.sin),
                     .pairs = static_cast<int>(options.cos.dim(1)),
                     .distance = static_cast<int>(options.pair_distance),
                     .heads = static_cast<int>(q.dim(1)),
                     .num_queries = queries ? q.dim(0) * q.dim(1) : 0};
  bool aligned = rows_are_aligned(q);
  DType stored = DType::kF32;
  if (!k.empty()) {
    args.k = rows_of<const float>(k);
    args.v = rows_of<const float>(v);
    args.k_norm = options.k_norm.data<float>();
    args.kv_heads = static_cast<int>(k.dim(1));
    args.table = KvTable::upload(stream.cuda(), sequences);
    args.num_keys = int64_t{args.table.num_rows} * k.dim(1);
    aligned = aligned && rows_are_aligned(k, v);
    stored = cache.keys.dtype();
  }
  const auto launch_for = [&](auto element) {
    return launch_heads<decltype(element)>(stream, q.dim(2), args, cache);
  };
  const bool done = aligned && (stored == DType::kF32    ? launch_for(float())
                                : stored == DType::kBF16 ? launch_for(__nv_bfloat16())
                                                         : launch_for(int8_t()));
  if (done) stream.cuda().finish_op("prepare_heads");
  return done;
}

}  // namespace braid::cuda

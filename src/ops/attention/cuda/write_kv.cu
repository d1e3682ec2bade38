#include <cuda_bf16.h>

#include "ops/attention/cuda/paged_store.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/int8.cuh"
#include "ops/cuda/row_vectors.cuh"

namespace braid::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ void put(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }
__device__ __forceinline__ void put(__nv_bfloat16* to, float4 v) {
  __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<uint2*>(pairs);
}

// Grid: parts of rows, keys or values.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    write_kernel(Rows<const float> k, Rows<const float> v, KvTable table, PagedRows<T> keys,
                 PagedRows<T> values, int width, int parts) {
  wait_for_inputs();
  const bool is_key = blockIdx.y == 0;
  const PagedRows<T>& store = is_key ? keys : values;
  const int entry = blockIdx.x / parts;
  const DeviceSequence sequence = table.sequences[table.row_sequences[entry]];
  const int row = entry - sequence.first_entry;
  const int i = 4 * (blockIdx.x % parts * kThreads + threadIdx.x);
  if (i >= width) return;
  const int64_t at =
      store.offset(table.pages(sequence), sequence.num_pages, sequence.first_position + row);
  const float* from = (is_key ? k : v)[sequence.first_row + row];
  // A head's elements are a multiple of eight.
  const int head = i / store.head_dim;
  put(store.data + at + store.head_offset(head) + (i - head * store.head_dim),
      load4<kAligned>(from, i, width));
}

// A warp takes a head of a row. Grid: parts of heads, keys or values.
template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    write_codes_kernel(Rows<const float> k, Rows<const float> v, KvTable table,
                       PagedRows<int8_t> keys, PagedRows<int8_t> values, int kv_heads,
                       int num_heads) {
  wait_for_inputs();
  const int index = (blockIdx.x * kThreads + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (index >= num_heads) return;
  const bool is_key = blockIdx.y == 0;
  const PagedRows<int8_t>& store = is_key ? keys : values;
  const int entry = index / kv_heads, head = index % kv_heads, width = store.head_dim;
  const DeviceSequence sequence = table.sequences[table.row_sequences[entry]];
  const int row = entry - sequence.first_entry;
  const float* from = (is_key ? k : v)[sequence.first_row + row] + head * width;
  const int64_t at =
      store.offset(table.pages(sequence), sequence.num_pages, sequence.first_position + row) +
      store.head_offset(head);
  uint32_t largest = 0;
  for (int i = 4 * lane; i < width; i += 4 * kWarp) {
    largest = max(largest, magnitude(load4<kAligned>(from, i, width)));
  }
  const Int8Scale scale = int8_scale(warp_max(largest), store.fixed_scale);
  for (int i = 4 * lane; i < width; i += 4 * kWarp) {
    *reinterpret_cast<uint32_t*>(store.data + at + i) =
        clamped_int8_codes(load4<kAligned>(from, i, width), scale.inverse);
  }
  if (lane == 0) store.scales[at / width] = scale.scale;
}

void write_codes(Stream& stream, const TensorView& k, const TensorView& v,
                 std::span<const SequenceRows> sequences, const PagedKv& cache) {
  const KvTable table = KvTable::upload(stream.cuda(), sequences);
  const int kv_heads = static_cast<int>(k.dim(1));
  const int num_heads = table.num_rows * kv_heads;
  const dim3 grid(static_cast<unsigned>(ceil_divide(num_heads, kThreads / kWarp)), 2);
  with_alignment(rows_are_aligned(k, v), [&](auto aligned) {
    launch(stream, write_codes_kernel<decltype(aligned)::value>, grid, kThreads, 0,
           rows_of<const float>(k), rows_of<const float>(v), table,
           PagedRows<int8_t>(cache.keys, cache.key_scales, cache.static_scales.key),
           PagedRows<int8_t>(cache.values, cache.value_scales, cache.static_scales.value), kv_heads,
           num_heads);
  });
}

template <typename T>
void write(Stream& stream, const TensorView& k, const TensorView& v,
           std::span<const SequenceRows> sequences, const TensorView& keys,
           const TensorView& values) {
  const KvTable table = KvTable::upload(stream.cuda(), sequences);
  const int width = static_cast<int>(k.dim(1) * k.dim(2));
  const int parts = ceil_divide(width, 4 * kThreads);
  const dim3 grid(static_cast<unsigned>(table.num_rows * parts), 2);
  with_alignment(rows_are_aligned(k, v), [&](auto aligned) {
    launch(stream, write_kernel<T, decltype(aligned)::value>, grid, kThreads, 0,
           rows_of<const float>(k), rows_of<const float>(v), table, PagedRows<T>(keys),
           PagedRows<T>(values), width, parts);
  });
}

}  // namespace

void write_kv(Stream& stream, const TensorView& k, const TensorView& v,
              std::span<const SequenceRows> sequences, const PagedKv& cache) {
  if (cache.keys.dtype() == DType::kF32) {
    write<float>(stream, k, v, sequences, cache.keys, cache.values);
  } else if (cache.keys.dtype() == DType::kI8) {
    write_codes(stream, k, v, sequences, cache);
  } else {
    write<__nv_bfloat16>(stream, k, v, sequences, cache.keys, cache.values);
  }
  stream.cuda().finish_op("write_kv");
}

}  // namespace braid::cuda

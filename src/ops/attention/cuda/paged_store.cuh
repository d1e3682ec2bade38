#pragma once

// Where the keys and values of a layer are.

#include <bit>

#include "base/check.h"
#include "ops/attention/cuda/kv_table.h"
#include "ops/cuda/int8.cuh"
#include "ops/cuda/launch.cuh"

namespace braid::cuda {

// One of the two tensors [pages, kv_heads, page_tokens, head_dim] of a store.
template <typename T>
struct PagedRows {
  T* data;
  int64_t page_stride;  // elements
  int page_shift;       // page_tokens = 1 << page_shift
  int head_dim;
  float* scales;          // of rows, in their order in the store; of int8 only
  Int8Scale fixed_scale;  // with which rows are written (PagedKv::static_scales); 0: their own

  PagedRows() = default;
  explicit PagedRows(const TensorView& view, const TensorView& row_scales = {},
                     float static_scale = 0)
      : data(static_cast<T*>(view.raw())),
        page_stride(view.row_stride()),
        page_shift(std::countr_zero(static_cast<uint64_t>(view.dim(2)))),
        head_dim(static_cast<int>(view.dim(3))),
        scales(nullptr),
        fixed_scale{static_scale > 0 ? 1.0f / static_scale : 0.0f, static_scale} {
    if (row_scales.rank() == 0) return;
    const int64_t rows = view.dim(1) * view.dim(2);
    BRAID_CHECK(view.row_stride() == rows * view.dim(3) && row_scales.row_stride() == rows,
                "int8 keys or values whose pages are not one behind the other");
    scales = row_scales.data<float>();
  }

  // The element offset of the row of a position, in KV head 0.
  __device__ int64_t offset(const int32_t* pages, int num_pages, int position) const {
    const int index = position >> page_shift;
    return offset(pages[index < num_pages ? index : index % num_pages], position);
  }
  // The same, in a page that was found.
  __device__ int64_t offset(int page, int position) const {
    return page * page_stride + static_cast<int64_t>(position & ((1 << page_shift) - 1)) * head_dim;
  }
  __device__ int64_t head_offset(int kv_head) const {
    return (static_cast<int64_t>(kv_head) << page_shift) * head_dim;
  }
};

}  // namespace braid::cuda

#pragma once

// The tensor cores of Hopper, for four warps together: d[64 rows, N tokens] += a[64, 16] · b[16,
// N], with a and b in shared memory. Of lane l of warp w, d[4 j … 4 j + 3] are rows 16 w + l / 4
// (twice) and 8 more (twice) of tokens 8 j + l % 4 · 2 and the next.

#include <cstdint>

namespace braid::cuda {

#define BRAID_EIGHT(d, i)                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

// Of a tile as in tiles.cuh that begins at a multiple of 1024 bytes; 16 columns are 32 bytes
// further.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t shared) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (shared & 0x3ffff) >> 4;
}

// The same of a matrix b[16, N] whose rows are those of tiles: N elements in pieces of 64, each
// with 128 bytes of every row, `piece_bytes` apart. 16 rows of b are 2048 bytes further.
__device__ __forceinline__ uint64_t turned_descriptor(uint32_t shared, uint32_t piece_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{piece_bytes >> 4} << 16 | (shared & 0x3ffff) >> 4;
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kNewer>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewer) : "memory");
}
// Arrives at a barrier of async_copy.cuh once the ordinary copies that this thread has begun, of
// operands, are in shared memory.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// What this thread stored in shared memory, or can see there, can be seen by the tensor cores after
// the next barrier, and by products of this thread from here on.
__device__ __forceinline__ void publish_to_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kTokens>
struct WarpgroupProduct;
template <>
struct WarpgroupProduct<64> {
  static __device__ void add(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, 1, 1, 1, 0, 0;"
        : BRAID_EIGHT(d, 0), BRAID_EIGHT(d, 8), BRAID_EIGHT(d, 16), BRAID_EIGHT(d, 24)
        : "l"(a), "l"(b));
  }
};

template <>
struct WarpgroupProduct<96> {
  static __device__ void add(float (&d)[48], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
        "%48, %49, 1, 1, 1, 0, 0;"
        : BRAID_EIGHT(d, 0), BRAID_EIGHT(d, 8), BRAID_EIGHT(d, 16), BRAID_EIGHT(d, 24),
          BRAID_EIGHT(d, 32), BRAID_EIGHT(d, 40)
        : "l"(a), "l"(b));
  }
};

template <>
struct WarpgroupProduct<128> {
  static __device__ void add(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
        : BRAID_EIGHT(d, 0), BRAID_EIGHT(d, 8), BRAID_EIGHT(d, 16), BRAID_EIGHT(d, 24),
          BRAID_EIGHT(d, 32), BRAID_EIGHT(d, 40), BRAID_EIGHT(d, 48), BRAID_EIGHT(d, 56)
        : "l"(a), "l"(b));
  }
};

template <>
struct WarpgroupProduct<160> {
  static __device__ void add(float (&d)[80], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
        "%80, %81, 1, 1, 1, 0, 0;"
        : BRAID_EIGHT(d, 0), BRAID_EIGHT(d, 8), BRAID_EIGHT(d, 16), BRAID_EIGHT(d, 24),
          BRAID_EIGHT(d, 32), BRAID_EIGHT(d, 40), BRAID_EIGHT(d, 48), BRAID_EIGHT(d, 56),
          BRAID_EIGHT(d, 64), BRAID_EIGHT(d, 72)
        : "l"(a), "l"(b));
  }
};

template <>
struct WarpgroupProduct<192> {
  static __device__ void add(float (&d)[96], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, 1, 1, 1, 0, 0;"
        : BRAID_EIGHT(d, 0), BRAID_EIGHT(d, 8), BRAID_EIGHT(d, 16), BRAID_EIGHT(d, 24),
          BRAID_EIGHT(d, 32), BRAID_EIGHT(d, 40), BRAID_EIGHT(d, 48), BRAID_EIGHT(d, 56),
          BRAID_EIGHT(d, 64), BRAID_EIGHT(d, 72), BRAID_EIGHT(d, 80), BRAID_EIGHT(d, 88)
        : "l"(a), "l"(b));
  }
};

// d[64 rows, 256] += a[64, 16] · b[16, 256] with `a` in registers: of lane l of warp w, a[0] is
// columns l % 4 · 2 and the next of row 16 w + l / 4, a[1] those of 8 rows further, a[2] and a[3]
// 8 columns further. b: see turned_descriptor().
__device__ __forceinline__ void add_turned_product(float (&d)[128], const uint32_t (&a)[4],
                                                   uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
      : BRAID_EIGHT(d, 0), BRAID_EIGHT(d, 8), BRAID_EIGHT(d, 16), BRAID_EIGHT(d, 24),
        BRAID_EIGHT(d, 32), BRAID_EIGHT(d, 40), BRAID_EIGHT(d, 48), BRAID_EIGHT(d, 56),
        BRAID_EIGHT(d, 64), BRAID_EIGHT(d, 72), BRAID_EIGHT(d, 80), BRAID_EIGHT(d, 88),
        BRAID_EIGHT(d, 96), BRAID_EIGHT(d, 104), BRAID_EIGHT(d, 112), BRAID_EIGHT(d, 120)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef BRAID_EIGHT

}  // namespace braid::cuda

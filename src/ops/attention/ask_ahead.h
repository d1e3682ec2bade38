#pragma once

// Memory asked for a little at a time, for kernel files (see ops/cpu/dispatch.h). A burst would
// fill the processor's list of outstanding misses and stop it until the memory has kept up.

#include "ops/attention/attention_kernels.h"
#include "ops/cpu/simd.h"

namespace braid::BRAID_ISA {

// Rows [begin, end) of a tile's keys or values, to be asked for in about `calls` calls of some().
class AskAhead {
 public:
  AskAhead() = default;
  AskAhead(const void* const* segments, int shift, int begin, int end, int64_t row_bytes,
           int64_t calls)
      : segments_(segments), segment_bytes_(row_bytes << shift), segment_(begin >> shift) {
    const int64_t offset = (begin & ((1 << shift) - 1)) * row_bytes;
    at_ = static_cast<const char*>(segments[segment_]) + offset;
    left_in_segment_ = segment_bytes_ - offset;
    left_ = (end - begin) * row_bytes;
    bytes_a_call_ = (left_ / (calls > 0 ? calls : 1) + 64) / 64 * 64;
  }

  [[gnu::always_inline]] void some() {
#if defined(BRAID_ISA_avx2) || defined(BRAID_ISA_avx512)
    for (int64_t asked = 0; asked < bytes_a_call_ && left_ > 0; asked += 64) {
      _mm_prefetch(at_, _MM_HINT_T1);
      at_ += 64;
      left_ -= 64;
      left_in_segment_ -= 64;
      if (left_in_segment_ <= 0 && left_ > 0) {
        at_ = static_cast<const char*>(segments_[++segment_]);
        left_in_segment_ = segment_bytes_;
      }
    }
#endif
  }

 private:
  const void* const* segments_ = nullptr;
  const char* at_ = nullptr;
  int64_t segment_bytes_ = 0, left_in_segment_ = 0, left_ = 0, bytes_a_call_ = 0;
  int segment_ = 0;
};

}  // namespace braid::BRAID_ISA

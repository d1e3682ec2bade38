#include "ops/logits/scan_logits.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

constexpr int64_t kGrain = 65536;  // logits; few short rows are not worth waking other threads
constexpr size_t kLanes = 16;      // written so that compilers make vector code of it

float larger(float a, float b) { return b > a ? b : a; }  // a, if b is no number

LogitsSummary summarise(std::span<const float> row) {
  uint32_t bad = 0;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  const auto take = [&](float x, float& lane) {
    bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(x) & 0x7f800000u) == 0x7f800000u);
    lane = larger(lane, x);
  };
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) take(row[i + j], lanes[j]);
  }
  for (; i < row.size(); ++i) take(row[i], lanes[0]);
  float top = -std::numeric_limits<float>::infinity();
  for (const float lane : lanes) top = larger(top, lane);
  int32_t largest = -1;
  if (top > -std::numeric_limits<float>::infinity()) {
    largest = static_cast<int32_t>(std::find(row.begin(), row.end(), top) - row.begin());
  }
  return {largest, bad == 0 ? 1 : 0};
}

}  // namespace

void scan_logits(Stream& stream, Workspace& workspace, const TensorView& logits,
                 const TensorView& summaries) {
  BRAID_CHECK(logits.rank() == 2 && summaries.rank() == 2 && summaries.dim(1) == 2 &&
                  summaries.dtype() == DType::kI32 && summaries.contiguous() &&
                  summaries.dim(0) == logits.dim(0),
              "logits {}, summaries {}", to_string(logits.shape()), to_string(summaries.shape()));
  if (logits.empty()) return;
  const OpScope op(stream, "scan_logits", [&] {
    return OpWork{.activation_bytes = 4.0 * static_cast<double>(logits.num_elements())};
  });
  if (!stream.is_cpu()) return cuda::scan_logits(stream, workspace, logits, summaries);
  const auto width = static_cast<size_t>(logits.dim(1));
  const auto scan = [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const LogitsSummary summary = summarise({logits.row<float>(r), width});
      std::memcpy(summaries.row<int32_t>(r), &summary, sizeof(summary));
    }
  };
  stream.pool().parallel_for(logits.dim(0), 1 + kGrain / logits.dim(1), scan);
}

}  // namespace braid

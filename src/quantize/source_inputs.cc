#include "quantize/source_inputs.h"

#include <cstring>
#include <utility>

#include "quantize/calibration_pass.h"
#include "tensor/cuda/stream_state.h"

namespace braid {

SourceInputs::SourceInputs(Stream& stream, std::set<std::string, std::less<>> readers)
    : stream_(stream), wanted_(std::move(readers)) {}

void SourceInputs::input(std::span<const std::string_view> readers, const TensorView& x) {
  const std::string_view* first = nullptr;
  for (const std::string_view& reader : readers) {
    if (!wanted_.contains(reader)) continue;
    if (first == nullptr) first = &reader;
    first_of_.insert_or_assign(std::string(reader), std::string(*first));
  }
  if (first == nullptr) return;
  // With the gaps between its rows, if it has some.
  const int64_t elements = x.dim(0) > 0 ? (x.dim(0) - 1) * x.row_stride() + x.dim(1) : 0;
  const auto bytes = static_cast<size_t>(elements) * dtype_bytes(x.dtype());
  Kept& kept = kept_[std::string(*first)];
  if (kept.memory.size_bytes() < bytes) kept.memory = Buffer(bytes, stream_.device());
  if (stream_.is_cpu()) {
    std::memcpy(kept.memory.data(), x.raw(), bytes);
  } else {
    cuda::copy_on_device(stream_.cuda(), kept.memory.data(), x.raw(), bytes);
  }
  kept.view = TensorView(kept.memory.data(), x.dtype(), {x.dim(0), x.row_stride()}, x.device())
                  .columns(0, x.dim(1));
  end_batch_if_seen(readers);
}

void SourceInputs::expert_input(std::span<const std::string_view> readers, const TensorView&,
                                const TensorView&) {
  end_batch_if_seen(readers);
}

void SourceInputs::end_batch_if_seen(std::span<const std::string_view> readers) {
  for (const std::string_view reader : readers) {
    if (const auto found = wanted_.find(reader); found != wanted_.end()) seen_.insert(*found);
  }
  if (seen_.size() < wanted_.size()) return;
  seen_.clear();
  throw CalibrationPass::Enough();
}

std::optional<TensorView> SourceInputs::find(std::string_view reader) const {
  const auto first = first_of_.find(reader);
  if (first == first_of_.end()) return std::nullopt;
  return kept_.find(first->second)->second.view;
}

}  // namespace braid

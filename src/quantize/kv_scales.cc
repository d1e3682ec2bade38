#include "quantize/kv_scales.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace braid {
namespace {

template <typename T>
void add_page(const TensorView& pages, int64_t page, int64_t tokens, Magnitudes& sums) {
  const int64_t heads = pages.dim(1), head = pages.dim(2) * pages.dim(3);
  for (int64_t h = 0; h < heads; ++h) {
    sums.add(std::span<const T>(pages.row<T>(page) + h * head,
                                static_cast<size_t>(tokens * pages.dim(3))));
  }
}

ScaleFit fit_of(const std::vector<Magnitudes>& parts, int64_t layer, const char* what) {
  Magnitudes all;
  for (const Magnitudes& part : parts) all.add(part);
  if (!std::isfinite(all.largest())) {
    throw Error("layer {}: a {} of the calibration is infinite or NaN", layer, what);
  }
  return fit_of(all, scale_by_range(all));
}

}  // namespace

KvObserver::KvObserver(Stream& stream)
    : stream_(stream),
      keys_(static_cast<size_t>(std::min<int64_t>(stream.pool().num_threads(), kMaxTasks))),
      values_(keys_.size()) {}

void KvObserver::add(const PagedKv& store, std::span<const SequenceRows> sequences) {
  pages_.clear();
  const int64_t page_tokens = store.page_tokens();
  int64_t first = store.keys.dim(0), end = 0;
  for (const SequenceRows& rows : sequences) {
    const auto held = static_cast<int64_t>(rows.pages.size()) * page_tokens;
    BRAID_CHECK(rows.first_position == 0 && rows.num_rows <= held, "{} rows from {}, room for {}",
                rows.num_rows, rows.first_position, held);
    for (int64_t begin = 0; begin < rows.num_rows; begin += page_tokens) {
      const int64_t page = rows.pages[begin / page_tokens];
      pages_.push_back({page, std::min(page_tokens, rows.num_rows - begin)});
      first = std::min(first, page);
      end = std::max(end, page + 1);
    }
  }
  if (pages_.empty()) return;
  // On a device: what lies between the batch's pages comes with them.
  add(copy_.fetch(stream_, store.keys.rows(first, end - first)), first, keys_);
  add(copy_.fetch(stream_, store.values.rows(first, end - first)), first, values_);
}

void KvObserver::add(const TensorView& pages, int64_t first_page, std::vector<Magnitudes>& sums) {
  const auto tasks = static_cast<int64_t>(sums.size());
  const auto count = static_cast<int64_t>(pages_.size());
  stream_.pool().parallel_for(tasks, 1, [&](int64_t task, int64_t, int) {
    for (int64_t i = task * count / tasks; i < (task + 1) * count / tasks; ++i) {
      const Page& page = pages_[i];
      if (pages.dtype() == DType::kBF16) {
        add_page<BFloat16>(pages, page.index - first_page, page.tokens, sums[task]);
      } else {
        add_page<float>(pages, page.index - first_page, page.tokens, sums[task]);
      }
    }
  });
}

KvLayerResult KvObserver::result(int64_t layer) const {
  return {
      .layer = layer, .key = fit_of(keys_, layer, "key"), .value = fit_of(values_, layer, "value")};
}

}  // namespace braid

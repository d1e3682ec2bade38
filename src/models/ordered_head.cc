#include "models/ordered_head.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "models/weight_rows.h"
#include "ops/elementwise/elementwise.h"
#include "ops/linear/linear.h"

namespace braid {
namespace {

std::vector<int32_t> checked_order(const std::vector<int64_t>& ids, const std::string& origin) {
  std::vector<bool> seen(ids.size());
  for (const int64_t id : ids) {
    if (id < 0 || id >= static_cast<int64_t>(ids.size()) || seen[id]) {
      throw Error(
          "{}: masked_embedding.token_ordering must name each of the {} tokens once; {} {}", origin,
          ids.size(), id,
          id < 0 || id >= static_cast<int64_t>(ids.size()) ? "is no token" : "occurs twice");
    }
    seen[id] = true;
  }
  return {ids.begin(), ids.end()};
}

// The k best centroids of a row, ascending; of equal ones the first.
void choose(const float* scores, int64_t count, int64_t k, std::vector<int32_t>& order,
            int32_t* chosen) {
  order.resize(count);
  std::iota(order.begin(), order.end(), 0);
  const auto score = [&](int32_t i) {
    return scores[i] == scores[i] ? scores[i] : -std::numeric_limits<float>::infinity();
  };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
    return score(a) != score(b) ? score(a) > score(b) : a < b;
  });
  std::copy_n(order.begin(), k, chosen);
  std::sort(chosen, chosen + k);
}

}  // namespace

OrderedHead::OrderedHead(Sizes sizes, WeightBinder& binder, const std::string& origin)
    : sizes_(sizes) {
  const int64_t group = sizes.vocab_size / sizes.num_centroids;
  centroids_ = Linear(
      binder.weight("masked_embedding.centroids.weight", {sizes.num_centroids, sizes.width}));
  const std::vector<int64_t> ids =
      binder.integers("masked_embedding.token_ordering", {sizes.vocab_size});
  const Weight table = binder.weight("embed_tokens.weight", {sizes.vocab_size, sizes.width});
  if (table.empty() || ids.empty()) return;
  token_order_ = checked_order(ids, origin);
  std::vector<RowRange> rows;
  rows.reserve(token_order_.size());
  for (const int32_t id : token_order_) rows.push_back({id, 1});
  table_ = select_rows(table, rows);
  table_.shape = Shape{sizes.num_centroids, group, sizes.width};
}

TensorView OrderedHead::run(StepContext& step, const TensorView& y) const {
  const int64_t rows = y.dim(0);
  const int64_t group = sizes_.vocab_size / sizes_.num_centroids;
  const TensorView scores = centroids_.run(step, y);  // [rows, centroids]

  // One product for all rows and groups: (group, row) pairs, sorted by group.
  std::vector<int32_t> chosen(rows * sizes_.top_k), scratch;
  std::vector<int32_t> offsets(sizes_.num_centroids + 1);
  for (int64_t row = 0; row < rows; ++row) {
    int32_t* of_row = chosen.data() + row * sizes_.top_k;
    choose(scores.row<float>(row), sizes_.num_centroids, sizes_.top_k, scratch, of_row);
    for (int64_t i = 0; i < sizes_.top_k; ++i) ++offsets[of_row[i] + 1];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  std::vector<int32_t> next(offsets.begin(), offsets.end() - 1);
  std::vector<int32_t> row_of(chosen.size()), place(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    place[i] = next[chosen[i]]++;
    row_of[place[i]] = static_cast<int32_t>(i / sizes_.top_k);
  }
  const int64_t pairs = static_cast<int64_t>(chosen.size());
  const TensorView x = step.workspace.take(DType::kF32, {pairs, sizes_.width});
  gather_rows(step.stream, y, row_of, x);
  const TensorView computed = step.workspace.take(DType::kF32, {pairs, group});
  grouped_linear(step.stream, table_, prepare_input(step, x, {&table_}), offsets, computed);

  const TensorView logits = step.workspace.take(DType::kF32, {rows, sizes_.vocab_size});
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row * sizes_.top_k;
    float smallest = std::numeric_limits<float>::infinity();
    for (int64_t i = first; i < first + sizes_.top_k; ++i) {
      const float* values = computed.row<float>(place[i]);
      smallest = std::min(smallest, *std::min_element(values, values + group));
    }
    float* out = logits.row<float>(row);
    std::fill_n(out, sizes_.vocab_size, smallest - 1);
    for (int64_t i = first; i < first + sizes_.top_k; ++i) {
      const float* values = computed.row<float>(place[i]);
      const int32_t* ids = token_order_.data() + chosen[i] * group;
      for (int64_t j = 0; j < group; ++j) out[ids[j]] = values[j];
    }
  }
  return logits;
}

}  // namespace braid

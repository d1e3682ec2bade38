#include "models/ordered_head.h"

#include <algorithm>

#include "base/error.h"
#include "models/weight_rows.h"
#include "ops/elementwise/elementwise.h"
#include "ops/linear/linear.h"
#include "ops/logits/spread_logits.h"
#include "ops/moe/moe.h"

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
  const std::vector<int32_t> order = checked_order(ids, origin);
  token_order_ = Tensor(DType::kI32, {sizes.vocab_size});
  std::copy(order.begin(), order.end(), token_order_.view().data<int32_t>());
  std::vector<RowRange> rows;
  rows.reserve(order.size());
  for (const int32_t id : order) rows.push_back({id, 1});
  table_ = select_rows(table, rows);
  table_.shape = Shape{sizes.num_centroids, group, sizes.width};
}

TensorView OrderedHead::run(StepContext& step, const TensorView& y) const {
  Workspace& workspace = step.workspace;
  const int64_t rows = y.dim(0), pairs = rows * sizes_.top_k;
  const TensorView logits = workspace.take(DType::kF32, {rows, sizes_.vocab_size});
  const TensorView scores = centroids_.run(step, y);  // [rows, centroids]
  const TensorView chosen = workspace.take(DType::kI32, {rows, sizes_.top_k});
  const TensorView unused = workspace.take(DType::kF32, {rows, sizes_.top_k});
  top_k_experts(step.stream, scores, {}, chosen, unused);

  // One product for all rows and groups: (row, group) pairs, sorted by group.
  const ExpertGroups groups = group_by_expert(step.stream, workspace, chosen, sizes_.num_centroids);
  const TensorView x = workspace.take(DType::kF32, {pairs, sizes_.width});
  gather_rows(step.stream, y, groups.tokens, x);
  const int64_t size = sizes_.vocab_size / sizes_.num_centroids;
  const TensorView computed = workspace.take(DType::kF32, {pairs, size});
  grouped_linear(step.stream, table_, prepare_input(step, x, {&table_}), groups.offsets, computed);
  spread_logits(step.stream, computed, groups.places, chosen, token_order_.view(), logits);
  return logits;
}

}  // namespace braid

#include "speculative/assistant_drafter.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace braid {
namespace {

constexpr size_t kWorkspaceBytes = size_t{4} << 30;  // address space

bool all_finite(std::span<const float> row) {
  return std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

AssistantDrafter::AssistantDrafter(std::shared_ptr<const Gemma4Assistant> model,
                                   const DrafterSetup& setup)
    : model_(std::move(model)),
      stream_(setup.stream),
      precision_(setup.precision),
      workspace_(kWorkspaceBytes, setup.stream.device()),
      layer_rows_(static_cast<size_t>(model_->num_layers())),
      layer_kv_(static_cast<size_t>(model_->num_layers())) {
  BRAID_CHECK(model_->hidden_size() == setup.target.hidden_size() &&
                  model_->vocab_size() == setup.target.vocab_size(),
              "an assistant of another model");
}

void AssistantDrafter::draft(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) request.drafts.clear();
  if (!begin(requests)) return;
  while (!request_of_.empty()) draft_one(requests);
}

// Rows for the first draft of each request that wants some.
bool AssistantDrafter::begin(std::span<DraftRequest> requests) {
  request_of_.clear();
  hidden_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    if (request.max_drafts <= 0) continue;
    BRAID_CHECK(!request.hidden.empty(), "a request for drafts without a hidden state");
    request_of_.push_back(i);
    const float* row = request.hidden.row<float>(request.hidden.dim(0) - 1);
    hidden_.insert(hidden_.end(), row, row + model_->hidden_size());
  }
  return !request_of_.empty();
}

// Drafts one token for each row; the rows that want more remain.
void AssistantDrafter::draft_one(std::span<DraftRequest> requests) {
  const int64_t num_rows = static_cast<int64_t>(request_of_.size());
  token_ids_.clear();
  positions_.clear();
  logits_rows_.clear();
  for (auto& rows : layer_rows_) rows.clear();
  for (int64_t row = 0; row < num_rows; ++row) {
    const DraftRequest& request = requests[request_of_[row]];
    const SequenceState& target = *request.target;
    token_ids_.push_back(request.drafts.empty() ? request.tokens.back() : request.drafts.back());
    positions_.push_back(static_cast<int32_t>(target.length()));
    logits_rows_.push_back(static_cast<int32_t>(row));
    for (int64_t layer = 0; layer < model_->num_layers(); ++layer) {
      const int group = target.pool().layer_group(model_->donor_layer(layer));
      layer_rows_[layer].push_back({.first_row = row,
                                    .num_rows = 1,
                                    .first_position = target.length() - 1,
                                    .pages = target.pages(group)});
    }
  }
  const CachePool& pool = requests[request_of_.front()].target->pool();
  for (int64_t layer = 0; layer < model_->num_layers(); ++layer) {
    layer_kv_[layer] = {pool.layer_kv(model_->donor_layer(layer)), layer_rows_[layer]};
  }

  const Workspace::Scope scope(workspace_);
  StepContext step{
      .stream = stream_,
      .workspace = workspace_,
      .precision = precision_,
      .token_ids = token_ids_,
      .positions = positions_,
      .logits_rows = logits_rows_,
      .layer_kv = layer_kv_,
      .backbone_hidden = TensorView(hidden_.data(), DType::kF32, {num_rows, model_->hidden_size()}),
      .wants_hidden = true};
  const TensorView logits = model_->forward(step);

  std::vector<size_t> remaining;
  std::vector<float> hidden;
  for (int64_t row = 0; row < num_rows; ++row) {
    DraftRequest& request = requests[request_of_[row]];
    const std::span<const float> values(logits.row<float>(row), static_cast<size_t>(logits.dim(1)));
    if (!all_finite(values)) continue;
    const auto draft = sampler_.pick(values, request);
    if (!draft) continue;
    request.drafts.push_back(*draft);
    if (static_cast<int64_t>(request.drafts.size()) >= request.max_drafts) continue;
    remaining.push_back(request_of_[row]);
    const float* own = step.hidden.row<float>(row);
    hidden.insert(hidden.end(), own, own + model_->hidden_size());
  }
  request_of_ = std::move(remaining);
  hidden_ = std::move(hidden);
}

}  // namespace braid

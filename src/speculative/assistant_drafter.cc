#include "speculative/assistant_drafter.h"

#include <utility>

#include "base/check.h"
#include "ops/elementwise/elementwise.h"
#include "tensor/profiler.h"
#include "tensor/step_tables.h"

namespace braid {
namespace {

constexpr size_t kWorkspaceBytes = size_t{4} << 30;  // address space

}  // namespace

AssistantDrafter::AssistantDrafter(std::shared_ptr<const Gemma4Assistant> model,
                                   const DrafterSetup& setup)
    : model_(std::move(model)),
      stream_(setup.stream),
      precision_(setup.precision),
      workspace_(kWorkspaceBytes, setup.stream.device()),
      sampler_(setup.stream),
      hidden_(DType::kF32, {setup.max_sequences, model_->hidden_size()}, setup.stream.device()),
      layer_rows_(static_cast<size_t>(model_->num_layers())),
      layer_kv_(static_cast<size_t>(model_->num_layers())) {
  BRAID_CHECK(model_->hidden_size() == setup.target.hidden_size() &&
                  model_->vocab_size() == setup.target.vocab_size(),
              "an assistant of another model");
}

void AssistantDrafter::draft(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) request.drafts.clear();
  const StepScope drafts(stream_, /*counts=*/false);
  if (!begin(requests)) return;
  while (!request_of_.empty()) draft_one(requests);
}

// Rows for the first draft of each request that wants some.
bool AssistantDrafter::begin(std::span<DraftRequest> requests) {
  request_of_.clear();
  std::vector<int32_t> rows;
  TensorView hidden;
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    if (request.max_drafts <= 0) continue;
    BRAID_CHECK(request.num_hidden > 0, "a request for drafts without a hidden state");
    request_of_.push_back(i);
    rows.push_back(static_cast<int32_t>(request.first_hidden + request.num_hidden - 1));
    hidden = request.hidden;
  }
  if (!rows.empty()) keep_hidden(hidden, rows);
  return !rows.empty();
}

void AssistantDrafter::keep_hidden(const TensorView& hidden, std::span<const int32_t> rows) {
  gather_rows(stream_, hidden, rows, hidden_.view().rows(0, static_cast<int64_t>(rows.size())));
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
  StepContext step{.stream = stream_,
                   .workspace = workspace_,
                   .precision = precision_,
                   .token_ids = token_ids_,
                   .positions = positions_,
                   .logits_rows = logits_rows_,
                   .layer_kv = layer_kv_,
                   .backbone_hidden = hidden_.view().rows(0, num_rows),
                   .wants_hidden = true};
  const TensorView logits = [&] {
    const StepTables tables(stream_);
    return model_->forward(step);
  }();

  const std::span<const int32_t> picks = sampler_.pick(workspace_, logits, requests, request_of_);
  std::vector<size_t> remaining;
  std::vector<int32_t> rows;
  for (int64_t row = 0; row < num_rows; ++row) {
    DraftRequest& request = requests[request_of_[row]];
    if (picks[row] < 0) continue;
    request.drafts.push_back(picks[row]);
    if (static_cast<int64_t>(request.drafts.size()) >= request.max_drafts) continue;
    remaining.push_back(request_of_[row]);
    rows.push_back(static_cast<int32_t>(row));
  }
  request_of_ = std::move(remaining);
  if (!rows.empty()) keep_hidden(step.hidden, rows);
}

}  // namespace braid

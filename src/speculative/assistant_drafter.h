#pragma once

#include <memory>
#include <vector>

#include "models/gemma4_assistant.h"
#include "speculative/draft_sampler.h"
#include "speculative/drafter_setup.h"
#include "tensor/tensor.h"
#include "tensor/workspace.h"

namespace braid {

// Drafts with a Gemma 4 assistant, which reads the target's keys and values and its newest hidden
// state. It remembers nothing of a sequence. Only tokens that the target has committed are seen.
class AssistantDrafter : public Drafter {
 public:
  AssistantDrafter(std::shared_ptr<const Gemma4Assistant> model, const DrafterSetup& setup);

  std::string_view name() const override { return "assistant"; }
  bool wants_hidden() const override { return true; }
  void draft(std::span<DraftRequest> requests) override;
  void rewind(int64_t, int64_t) override {}
  void forget(int64_t) override {}

 private:
  bool begin(std::span<DraftRequest> requests);
  void keep_hidden(const TensorView& hidden, std::span<const int32_t> rows);
  void draft_one(std::span<DraftRequest> requests);

  std::shared_ptr<const Gemma4Assistant> model_;
  Stream& stream_;
  ActivationPrecision precision_;
  Workspace workspace_;
  DraftSampler sampler_;

  // The rows of a step: one for each sequence that wants a further draft.
  std::vector<size_t> request_of_;
  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> logits_rows_;
  Tensor hidden_;  // [at least rows, hidden size of the target]: what they start from
  std::vector<std::vector<SequenceRows>> layer_rows_;
  std::vector<StepContext::LayerKv> layer_kv_;
};

}  // namespace braid

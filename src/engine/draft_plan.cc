#include "engine/draft_plan.h"

#include <algorithm>

#include "engine/demo_models.h"
#include "models/registry.h"
#include "speculative/hidden_rows.h"
#include "speculative/model_drafter.h"
#include "speculative/mtp_drafter.h"
#include "speculative/rounded_head.h"

namespace braid {
namespace {

constexpr int64_t kFloat = sizeof(float);

// Loading is over when the workspaces begin to grow.
void add_weights(MemoryPlan& plan, const char* what, const PlacementCount& count) {
  plan.add(MemoryKind::kWeights, what, count.bytes);
  plan.add(MemoryKind::kWeights, "draft: while loading",
           count.beside - plan.bytes(MemoryKind::kWorkspace));
}

// Of rows that go through a head and are drawn from.
int64_t head_bytes(int64_t rows, int64_t width, int64_t vocab_size, const DrafterSizes& sizes,
                   const DeviceMemory& device) {
  return rows * (kFloat * vocab_size + kFloat * width) +
         static_cast<int64_t>(device.input_bytes(sizes.precision) *
                              static_cast<double>(rows * width)) +
         device.edit_bytes(rows, vocab_size);
}

}  // namespace

DraftPlan::DraftPlan(const DrafterChoice& choice, const LoadedModel& target)
    : kind_(choice.kind), target_(target) {
  check_drafter(choice, target);
  if (kind_ == DrafterChoice::Kind::kModel) {
    draft_.emplace(LoadedModel::load(
        choice.path, {.with_tokenizer = false, .device = target.device(), .read_ahead = false}));
  } else if (kind_ == DrafterChoice::Kind::kAssistant) {
    assistant_files_ = std::make_unique<ModelFiles>(ModelFiles::open(resolve_model(choice.path)));
    assistant_files_->weights().set_deferring(true);
    assistant_ = load_assistant(*assistant_files_, target.model());
    if (target.device().is_cpu()) {
      assistant_placed_.bytes = assistant_->load_report().weight_bytes;
    } else {
      Placement counting = Placement::counting(target.device());
      assistant_->place(counting);
      assistant_placed_ = counting.counted();
    }
  }
}

void DraftPlan::add(MemoryPlan& plan, const DrafterSizes& sizes, const DeviceMemory& device) const {
  switch (kind_) {
    case DrafterChoice::Kind::kOff:
    case DrafterChoice::Kind::kNgram:
      return;
    case DrafterChoice::Kind::kMtp:
      return add_mtp(plan, sizes, device);
    case DrafterChoice::Kind::kModel:
      return add_draft_model(plan, sizes, device);
    case DrafterChoice::Kind::kAssistant:
      return add_assistant(plan, sizes, device);
  }
}

// The head's own weights are the target's.
void DraftPlan::add_mtp(MemoryPlan& plan, const DrafterSizes& sizes,
                        const DeviceMemory& device) const {
  const Model& head = *target_.model().draft_head();
  const Weight& vocabulary = *head.vocabulary_head();
  add_weights(plan, "draft: head of 4 bits", RoundedHead::count(vocabulary, target_.device()));
  const CacheOptions cache = MtpDrafter::cache_options(sizes);
  add_cache(plan, "draft: ", plan_cache(head.cache_layout(), cache), device);
  const StepSize step{.tokens = cache.max_step_tokens,
                      .sequences = sizes.max_sequences,
                      .precision = sizes.precision};
  const int64_t width = head.hidden_size();
  plan.add(MemoryKind::kWorkspace, "draft: activations", device.workspace_bytes(head, step));
  plan.add(
      MemoryKind::kWorkspace, "draft: logits",
      device.workspace(step.tokens * kFloat * width +
                       head_bytes(sizes.max_sequences, width, vocabulary.rows(), sizes, device)));
  plan.add(MemoryKind::kWorkspace, "draft: hidden states",
           device.allocated(HiddenRows::size_bytes(width, MtpDrafter::max_kept_rows(sizes))) +
               2 * device.allocated(kFloat * sizes.max_sequences * width));
  device.add_graphs(plan, "draft: ", head, step);
}

void DraftPlan::add_draft_model(MemoryPlan& plan, const DrafterSizes& sizes,
                                const DeviceMemory& device) const {
  const Model& model = draft_->model();
  const PlacementCount weights = target_.device().is_cpu()
                                     ? PlacementCount{.bytes = model.load_report().weight_bytes}
                                     : draft_->placed();
  add_weights(plan, "draft: weights", weights);
  const CacheOptions cache = ModelDrafter::cache_options(model, sizes);
  add_cache(plan, "draft: ", plan_cache(model.cache_layout(), cache), device);
  const StepSize step{.tokens = cache.max_step_tokens,
                      .logits_rows = sizes.max_sequences,
                      .edited_rows = sizes.max_sequences,
                      .sequences = sizes.max_sequences,
                      .precision = sizes.precision};
  plan.add(MemoryKind::kWorkspace, "draft: activations", device.workspace_bytes(model, step));
  device.add_graphs(plan, "draft: ", model, step);
}

void DraftPlan::add_assistant(MemoryPlan& plan, const DrafterSizes& sizes,
                              const DeviceMemory& device) const {
  add_weights(plan, "draft: weights", assistant_placed_);
  const StepSize step{.tokens = sizes.max_sequences,
                      .logits_rows = sizes.max_sequences,
                      .edited_rows = sizes.max_sequences,
                      .sequences = sizes.max_sequences,
                      .precision = sizes.precision};
  // Its attention is over the target's keys and values, and takes what the target's would.
  StepSize attention = step;
  attention.logits_rows = attention.edited_rows = 0;
  plan.add(MemoryKind::kWorkspace, "draft: activations",
           device.workspace(device.step_bytes(*assistant_, step) +
                            device.step_bytes(target_.model(), attention)));
  plan.add(MemoryKind::kWorkspace, "draft: hidden states",
           device.allocated(kFloat * sizes.max_sequences * assistant_->hidden_size()));
}

}  // namespace braid

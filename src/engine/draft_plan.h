#pragma once

#include <memory>
#include <optional>

#include "engine/drafter_choice.h"
#include "engine/memory_plan.h"
#include "models/gemma4_assistant.h"

namespace braid {

// What a drafter takes beside its target, for a MemoryPlan. Drafters share their target's stream.
class DraftPlan {
 public:
  // `target`: described (LoadOptions::read_ahead false); it must outlive this. A draft model is
  // described likewise. Throws Error if it cannot be opened or check_drafter() does.
  DraftPlan(const DrafterChoice& choice, const LoadedModel& target);

  // Its weights, caches, workspaces and graphs.
  void add(MemoryPlan& plan, const DrafterSizes& sizes, const DeviceMemory& device) const;

 private:
  void add_mtp(MemoryPlan& plan, const DrafterSizes& sizes, const DeviceMemory& device) const;
  void add_draft_model(MemoryPlan& plan, const DrafterSizes& sizes,
                       const DeviceMemory& device) const;
  void add_assistant(MemoryPlan& plan, const DrafterSizes& sizes, const DeviceMemory& device) const;

  DrafterChoice::Kind kind_;
  const LoadedModel& target_;
  std::optional<LoadedModel> draft_;
  std::unique_ptr<ModelFiles> assistant_files_;
  std::unique_ptr<Gemma4Assistant> assistant_;
  PlacementCount assistant_placed_;
};

}  // namespace braid

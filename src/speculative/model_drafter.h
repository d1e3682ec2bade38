#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "runner/runner.h"
#include "speculative/draft_sampler.h"
#include "speculative/drafter_setup.h"

namespace braid {

// Drafts with a smaller model of the same vocabulary, which reads the whole text itself: a prompt
// along with the target, later tokens when drafts are wanted.
class ModelDrafter : public Drafter {
 public:
  // Throws Error if the vocabularies differ.
  ModelDrafter(std::shared_ptr<const Model> model, const DrafterSetup& setup);

  // The draft model's cache.
  static CacheOptions cache_options(const Model& model, const DrafterSizes& sizes);

  std::string_view name() const override { return "model"; }
  void draft(std::span<DraftRequest> requests) override;
  void rewind(int64_t sequence, int64_t length) override;
  void forget(int64_t sequence) override { sequences_.erase(sequence); }

 private:
  struct Sequence {
    explicit Sequence(CachePool& pool) : state(pool) {}
    SequenceState state;
    int64_t target_length = 0;  // in the last round
    bool reads = false;         // in this round
    // Of the last round: they stand in the state behind its known tokens.
    std::vector<int32_t> drafts;
    RecurrentSnapshot snapshot;  // before these drafts, if the model is recurrent
  };

  bool fits(const DraftRequest& request) const;
  // How many of the request's tokens are to be read in this round.
  int64_t text_end(const DraftRequest& request) const;
  void keep_right_drafts(const DraftRequest& request, Sequence& sequence);
  void read_texts(std::span<DraftRequest> requests);
  void continue_drafts(std::span<DraftRequest> requests);
  void run_and_pick(std::span<DraftRequest> requests);

  std::shared_ptr<const Model> model_;
  int64_t max_drafts_;
  CachePool pool_;
  Runner runner_;
  DraftSampler sampler_;
  std::unordered_map<int64_t, Sequence> sequences_;

  StepPlan plan_;
  std::vector<size_t> request_of_;  // of each entry of the plan
  std::vector<size_t> picks_for_;   // of those with logits
};

}  // namespace braid

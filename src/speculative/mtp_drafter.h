#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "runner/runner.h"
#include "speculative/draft_sampler.h"
#include "speculative/drafter_setup.h"
#include "speculative/hidden_rows.h"
#include "speculative/rounded_head.h"

namespace braid {

// Drafts with the multi-token-prediction head of the target itself. The head reads pairs (hidden
// state of position p, token p + 1) and keeps keys and values of its own; those of known tokens are
// always computed from the target's hidden states. From the second draft on it goes on from its own
// hidden states, and these rows are forgotten before the next round. While no drafts are wanted it
// rests: it keeps the latest hidden states, and starts anew from those when it is asked again.
class MtpDrafter : public Drafter {
 public:
  // Throws Error if the target came without such a head.
  explicit MtpDrafter(const DrafterSetup& setup);

  // Its own cache.
  static CacheOptions cache_options(const DrafterSizes& sizes);
  // Hidden states of the target that it keeps at a time.
  static int64_t max_kept_rows(const DrafterSizes& sizes);

  std::string_view name() const override { return "mtp"; }
  bool wants_hidden() const override { return true; }
  void draft(std::span<DraftRequest> requests) override;
  // The last pair kept may then hold the token that was forgotten: its successors have been guessed
  // from it, which can cost an acceptance but no text.
  void rewind(int64_t sequence, int64_t length) override;
  void forget(int64_t sequence) override { sequences_.erase(sequence); }

 private:
  struct Sequence {
    explicit Sequence(CachePool& pool) : state(pool) {}
    // One row a pair, from first_pair on; those up to num_pairs are real, the others drafts.
    SequenceState state;
    int64_t first_pair = 0;
    int64_t num_pairs = 0;
    int64_t num_hidden = 0;  // positions whose hidden states have come
    std::vector<int32_t>
        hidden;         // [num_hidden - num_pairs] rows of hidden_rows_: without a pair yet
    bool lost = false;  // its hidden states have not all come
  };

  void make_room(std::span<const DraftRequest> requests);
  void take_hidden(const DraftRequest& request, Sequence& sequence);
  void rest(const DraftRequest& request, Sequence& sequence);
  bool is_due(const DraftRequest& request, const Sequence& sequence) const;
  void compute_pairs(std::span<DraftRequest> requests);
  void continue_drafts(std::span<DraftRequest> requests);
  StepResult run_step(const TensorView& backbone);
  void pick(std::span<DraftRequest> requests, const TensorView& hidden);
  int64_t num_pending(const DraftRequest& request, const Sequence& sequence) const;

  const Model& head_;
  Stream& stream_;
  int64_t hidden_size_;
  CachePool pool_;
  Runner runner_;
  RoundedHead vocabulary_head_;
  Workspace workspace_;
  HiddenRows hidden_rows_;
  DraftSampler sampler_;
  std::unordered_map<int64_t, Sequence> sequences_;

  // Of one step: which request each entry of the plan is of, and the rows it reads.
  StepPlan plan_;
  std::vector<size_t> request_of_;
  std::vector<bool> wants_draft_;  // each entry
  std::vector<int32_t> backbone_;  // [tokens of the step]: rows of what the step reads
  // The head's own hidden states of the newest drafts, and of those before them.
  Tensor own_hidden_, older_hidden_;  // [max_sequences, hidden size]
  int64_t num_own_ = 0;
  std::vector<int32_t> own_row_;  // [requests]: in own_hidden_, once there is a draft
  std::vector<int32_t> last_rows_;
  std::vector<size_t> chosen_;
};

}  // namespace braid

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "speculative/drafter_setup.h"
#include "speculative/speculation_governor.h"

namespace braid {

struct SpeculationOptions {
  DrafterFactory drafter;  // none: no speculation
  int64_t max_drafts = 3;  // of one sequence and step
  bool adaptive = true;    // false: always draft max_drafts tokens

  static constexpr int64_t kMaxDrafts = 64;
};

// Counts since the start. A round is one sequence's step that verified at least one draft.
struct SpeculationStats {
  int64_t rounds = 0;
  std::vector<int64_t> drafted;   // [position]: 0 is the first draft after the newest token
  std::vector<int64_t> accepted;  // [position]
  double draft_seconds = 0;       // making drafts and keeping the drafter up to date
  // By how much decoding was faster than its plain steps would have been; none before both kinds
  // were measured.
  std::optional<double> speed_up;

  int64_t num_drafted() const;
  int64_t num_accepted() const;
  double acceptance_rate() const;  // 0 if nothing was drafted
  double tokens_per_round() const;
};

// An engine's drafter, and how much it is asked for. A drafter that fails is left alone from then
// on; decoding goes on without it.
class Speculation {
 public:
  Speculation(const SpeculationOptions& options, const DrafterSetup& setup);

  std::string_view drafter_name() const { return drafter_->name(); }
  bool wants_hidden() const { return !failed_ && drafter_->wants_hidden(); }

  // The draft length of the next round, which `num_sequences` decoding sequences will verify.
  int64_t begin_round(int64_t num_sequences);
  // Fills in the drafts, at most as many as asked for and all of the vocabulary.
  void draft(std::span<DraftRequest> requests);
  void rewind(int64_t sequence, int64_t length);
  void forget(int64_t sequence);

  // What one sequence's verified drafts came to.
  void observe_drafts(int64_t asked, int64_t drafted, int64_t accepted);
  // A step after the last round. Only those in which every sequence decoded tell what drafts cost.
  void observe_step(int64_t num_sequences, int64_t tokens, double seconds, bool decoding);

  // Of the last round.
  double round_seconds() const { return round_seconds_; }
  SpeculationStats stats() const;
  void reset_stats() { stats_ = {}; }

 private:
  std::unique_ptr<Drafter> drafter_;
  int64_t vocab_size_;
  int64_t max_drafts_;
  std::optional<SpeculationGovernor> governor_;  // if adaptive
  bool failed_ = false;
  int64_t asked_ = 0;  // in the last round
  double round_seconds_ = 0;
  bool after_decoding_ = false;  // whether the last round followed a step of decoding alone
  SpeculationStats stats_;
};

}  // namespace braid

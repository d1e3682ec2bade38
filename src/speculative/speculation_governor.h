#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace braid {

// What became of one sequence's drafts in a step.
struct DraftOutcome {
  int64_t asked = 0;     // how many the drafter was asked for
  int64_t accepted = 0;  // how many of those it gave were right
};

// A step in which every sequence decoded.
struct DecodeObservation {
  int64_t num_sequences = 1;
  int64_t asked = 0;   // the draft length that choose() gave
  int64_t tokens = 0;  // drawn in the step
  double seconds = 0;  // the forward pass and the making of the drafts that it verified
};

// Chooses how many tokens to draft, so that tokens per second are highest. It knows nothing but
// what it is told: a function of its inputs, no clock.
//
// The expected tokens of a step come from the share of accepted drafts at each position, its cost
// from the latest steps of the same draft length and number of sequences (lengths not tried yet:
// a straight line through those that were; numbers of sequences not tried yet: in proportion to the
// next that was). It begins with a few plain steps and a short trial of
// the full length. While drafts do not pay, trials recur only as far as the time they lost, by the
// plain speed, stays below a small share of all decoding time.
class SpeculationGovernor {
 public:
  static constexpr double kMaxLoss = 0.01;        // share of the decoding time
  static constexpr int64_t kFirstPlainSteps = 4;  // of each number of sequences; one is not counted
  static constexpr int64_t kTrialSteps = 4;
  static constexpr int64_t kRefreshInterval = 64;  // most drafted steps between two plain ones

  explicit SpeculationGovernor(int64_t max_drafts);

  // The draft length of the next step in which `num_sequences` decode, 0 to max_drafts.
  int64_t choose(int64_t num_sequences);

  void observe_drafts(const DraftOutcome& outcome);
  void observe_step(const DecodeObservation& step);

  // Says, the first time that drafts turn out not to pay, why they are turned off. Once.
  std::optional<std::string> take_report();

  // Seconds that plain decoding of the tokens observed so far would have taken by estimate, beside
  // those it took; both only of steps for whose number of sequences there is an estimate.
  double plain_seconds() const { return plain_seconds_; }
  double actual_seconds() const { return actual_seconds_; }

 private:
  // The latest costs of one kind of step.
  class Cost {
   public:
    void add(double seconds);
    // A single step proves nothing.
    bool known() const { return count_ > 1; }
    // Mean of the latest, the highest sixth left out: a step may be held up by anything.
    double seconds() const;

   private:
    static constexpr int64_t kKept = 12;
    double latest_[kKept] = {};
    int64_t count_ = 0;
  };
  struct Batch {              // steps of one number of sequences
    std::vector<Cost> costs;  // by draft length
    int64_t num_plain = 0;
    int64_t since_plain = 0;  // drafted steps
    double credit = 0;        // seconds that drafts may cost
    bool drafted() const;
  };

  Batch& batch(int64_t num_sequences);
  double expected_tokens(int64_t drafts) const;  // of one sequence and step
  double expected_seconds(const Batch& batch, int64_t drafts) const;
  double cost_ratio(const Batch& batch, int64_t drafts) const;  // to a plain step
  int64_t best_length(const Batch& batch) const;
  double trial_cost(const Batch& batch) const;  // seconds beyond those of plain decoding
  void report(const Batch& batch);

  int64_t max_drafts_;
  std::map<int64_t, Batch> batches_;
  std::vector<double> asked_;  // [position]: rounds that asked for it, the older the lighter
  std::vector<double> accepted_;
  int64_t trial_left_ = 0;
  bool tried_ = false;
  double credit_ = 0;  // seconds that drafts may cost
  std::optional<std::string> report_;
  bool reported_ = false;
  double plain_seconds_ = 0;
  double actual_seconds_ = 0;
};

}  // namespace braid

#include "speculative/speculation_governor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace braid {
namespace {

// Of acceptance counts from round to round: about the last twenty count.
constexpr double kMemory = 0.95;
// Before anything is known: two rounds' worth of a middling drafter.
constexpr double kPriorRounds = 2;
constexpr double kPriorAcceptance = 0.6;
// What drafts must promise before they replace plain steps.
constexpr double kMinGain = 1.02;
// The first trial may cost this many plain steps, and no more is ever saved up for later ones.
constexpr double kTrialAllowance = 6;
// A trial that loses more than that ends after so many steps.
constexpr int64_t kShortestTrial = 3;

}  // namespace

void SpeculationGovernor::Cost::add(double seconds) { latest_[count_++ % kKept] = seconds; }

double SpeculationGovernor::Cost::seconds() const {
  constexpr int64_t kMany = 4;
  const int64_t n = std::min(count_, kKept);
  double sum = 0, highest = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += latest_[i];
    highest = std::max(highest, latest_[i]);
  }
  return n < kMany ? sum / static_cast<double>(n) : (sum - highest) / static_cast<double>(n - 1);
}

SpeculationGovernor::SpeculationGovernor(int64_t max_drafts)
    : max_drafts_(max_drafts), asked_(max_drafts), accepted_(max_drafts) {
  BRAID_CHECK(max_drafts >= 1, "at most {} drafts", max_drafts);
  double share = 1;
  for (int64_t i = 0; i < max_drafts; ++i) {
    share *= kPriorAcceptance;
    asked_[i] = kPriorRounds;
    accepted_[i] = kPriorRounds * share;
  }
}

// Many sequences: neighbouring numbers cost alike and share their figures.
SpeculationGovernor::Batch& SpeculationGovernor::batch(int64_t num_sequences) {
  constexpr int64_t kSingly = 8;
  int64_t key = num_sequences;
  int64_t step = 1;
  while (key > kSingly * step) step *= 2;
  key = (key + step - 1) / step * step;
  Batch& batch = batches_[key];
  if (batch.costs.empty()) batch.costs.resize(static_cast<size_t>(max_drafts_) + 1);
  return batch;
}

double SpeculationGovernor::expected_tokens(int64_t drafts) const {
  double tokens = 1;
  for (int64_t i = 0; i < drafts; ++i) tokens += accepted_[i] / asked_[i];
  return tokens;
}

bool SpeculationGovernor::Batch::drafted() const {
  return std::any_of(costs.begin() + 1, costs.end(), [](const Cost& c) { return c.known(); });
}

double SpeculationGovernor::expected_seconds(const Batch& batch, int64_t drafts) const {
  const double plain = batch.costs[0].seconds();
  if (drafts == 0 || batch.drafted()) return plain * cost_ratio(batch, drafts);
  // In ascending order of size: the next smaller one that has drafted, or else the next larger.
  const Batch* nearest = nullptr;
  bool beyond = false;
  for (const auto& [key, other] : batches_) {
    beyond = beyond || &other == &batch;
    if (!other.drafted() || !other.costs[0].known()) continue;
    if (beyond && nearest != nullptr) break;
    nearest = &other;
  }
  return nearest != nullptr ? plain * cost_ratio(*nearest, drafts)
                            : plain * static_cast<double>(1 + drafts);
}

double SpeculationGovernor::cost_ratio(const Batch& batch, int64_t drafts) const {
  const std::vector<Cost>& costs = batch.costs;
  const double plain = costs[0].seconds();
  int64_t below = drafts, above = drafts;
  while (below > 0 && !costs[below].known()) --below;
  while (above < max_drafts_ && !costs[above].known()) ++above;
  const double low = costs[below].seconds() / plain;
  if (above == below) return low;
  // Beyond the longest tried: as if a draft cost as much as a step, until it is known better.
  if (!costs[above].known()) return low + static_cast<double>(drafts - below);
  const double share = static_cast<double>(drafts - below) / static_cast<double>(above - below);
  return low + share * (costs[above].seconds() / plain - low);
}

int64_t SpeculationGovernor::best_length(const Batch& batch) const {
  const double plain = 1 / batch.costs[0].seconds();
  int64_t best = 0;
  double best_rate = plain * kMinGain;
  for (int64_t k = 1; k <= max_drafts_; ++k) {
    const double rate = expected_tokens(k) / expected_seconds(batch, k);
    if (rate > best_rate) {
      best = k;
      best_rate = rate;
    }
  }
  return best;
}

// Whether a trial as bad as the last one, or as the estimate says, would stay within what may be
// lost.
bool SpeculationGovernor::may_try(const Batch& batch) const {
  const double plain = batch.costs[0].seconds();
  const double drafted = expected_seconds(batch, max_drafts_);
  const double gained = plain * expected_tokens(max_drafts_);
  const double loss = static_cast<double>(kTrialSteps) * std::max(drafted - gained, 0.1 * plain);
  return lost_ + std::max(loss, trial_lost_) <= kMaxLoss * seconds_;
}

int64_t SpeculationGovernor::choose(int64_t num_sequences) {
  Batch& batch = this->batch(num_sequences);
  if (batch.num_plain < kFirstPlainSteps || batch.since_plain >= kRefreshInterval) return 0;
  if (trial_left_ > 0) return max_drafts_;
  const int64_t best = tried_ ? best_length(batch) : 0;
  if (best > 0) return best;
  if (!tried_ || may_try(batch)) {
    trial_left_ = kTrialSteps;
    return max_drafts_;
  }
  report(batch);
  return 0;
}

void SpeculationGovernor::observe_drafts(const DraftOutcome& outcome) {
  for (int64_t i = 0; i < std::min(outcome.asked, max_drafts_); ++i) {
    asked_[i] = asked_[i] * kMemory + 1;
    accepted_[i] = accepted_[i] * kMemory + (outcome.accepted > i ? 1 : 0);
  }
}

void SpeculationGovernor::observe_step(const DecodeObservation& step) {
  BRAID_CHECK(step.asked >= 0 && step.asked <= max_drafts_, "{} drafts asked for, at most {}",
              step.asked, max_drafts_);
  Batch& batch = this->batch(step.num_sequences);
  if (step.asked == 0) {
    batch.since_plain = 0;
    // The first step of its kind pays for memory that is touched for the first time.
    if (++batch.num_plain > 1) batch.costs[0].add(step.seconds);
  } else {
    ++batch.since_plain;
    // In the first step of a trial drafters may have to catch up with the text.
    if (trial_left_ != kTrialSteps) batch.costs[step.asked].add(step.seconds);
  }
  if (!batch.costs[0].known()) return;

  const double plain = batch.costs[0].seconds();
  const double plain_seconds =
      plain * static_cast<double>(step.tokens) / static_cast<double>(step.num_sequences);
  seconds_ += step.seconds;
  plain_seconds_ += plain_seconds;
  actual_seconds_ += step.seconds;
  if (step.asked == 0) return;
  const double lost = step.seconds - plain_seconds;
  lost_ = std::max(lost_ + lost, -kTrialAllowance * plain);
  if (trial_left_ == 0) return;
  if (trial_left_ == kTrialSteps) trial_lost_ = 0;
  trial_lost_ += lost;
  --trial_left_;
  const double allowed = std::max(kMaxLoss * seconds_, kTrialAllowance * plain);
  if (lost_ > allowed && trial_left_ <= kTrialSteps - kShortestTrial) trial_left_ = 0;
  if (trial_left_ == 0) tried_ = true;
}

void SpeculationGovernor::report(const Batch& batch) {
  if (reported_) return;
  reported_ = true;
  const double cost = expected_seconds(batch, max_drafts_) / batch.costs[0].seconds();
  report_ = fmt::format(
      "drafts are turned off, they do not pay: {} of them bring {:.2f} tokens a step at {:.2f} "
      "times the cost of a plain step ({:.2f} ms); tried again from time to time",
      max_drafts_, expected_tokens(max_drafts_), cost, 1e3 * batch.costs[0].seconds());
}

std::optional<std::string> SpeculationGovernor::take_report() {
  return std::exchange(report_, std::nullopt);
}

}  // namespace braid

#include "speculative/speculation_governor.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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
constexpr double kMinGain = 1.05;
// The first trial may cost this many plain steps. No more is saved up for later ones, unless a
// single one needs it.
constexpr double kTrialAllowance = 4;
// A step that takes more than so many times the usual counts as having taken that.
constexpr double kMostUsual = 2;
// A trial that uses up what may be lost ends after so many steps.
constexpr int64_t kShortestTrial = 2;

}  // namespace

void SpeculationGovernor::Cost::add(double seconds) { latest_[count_++ % kKept] = seconds; }

double SpeculationGovernor::Cost::seconds() const {
  const int64_t n = std::min(count_, kKept);
  std::vector<double> latest(latest_, latest_ + n);
  std::sort(latest.begin(), latest.end());
  const int64_t used = n - (n + kKept / 2 - 2) / (kKept / 2);
  return std::accumulate(latest.begin(), latest.begin() + used, 0.0) / static_cast<double>(used);
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

// What a trial is expected to cost.
double SpeculationGovernor::trial_cost(const Batch& batch) const {
  const double plain = batch.costs[0].seconds();
  const double drafted = expected_seconds(batch, max_drafts_);
  const double gained = plain * expected_tokens(max_drafts_);
  return static_cast<double>(kShortestTrial) * std::max(drafted - gained, 0.2 * plain);
}

int64_t SpeculationGovernor::choose(int64_t num_sequences) {
  Batch& batch = this->batch(num_sequences);
  if (batch.num_plain < kFirstPlainSteps) return 0;
  // The first figures, of few steps, are soon checked.
  if (batch.since_plain >= std::min(kRefreshInterval, 2 * batch.num_plain)) return 0;
  if (trial_left_ > 0) return max_drafts_;
  // Estimates may flatter; what drafts have lost does not.
  const int64_t best = tried_ && batch.credit >= 0 ? best_length(batch) : 0;
  if (best > 0) return best;
  if (!tried_ || batch.credit >= trial_cost(batch)) {
    if (!tried_) batch.credit = kTrialAllowance * batch.costs[0].seconds();
    trial_left_ = kTrialSteps;
    return max_drafts_;
  }
  if (best_length(batch) == 0) report(batch);
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
  Cost& cost = batch.costs[step.asked];
  // What the machine does beside is no fault of the drafts.
  const double seconds =
      cost.known() ? std::min(step.seconds, kMostUsual * cost.seconds()) : step.seconds;
  if (step.asked == 0) {
    batch.since_plain = 0;
    // The first step of its kind pays for memory that is touched for the first time.
    if (++batch.num_plain > 1) cost.add(step.seconds);
  } else {
    ++batch.since_plain;
    // In the first step of a trial drafters may have to catch up with the text.
    if (trial_left_ != kTrialSteps) cost.add(step.seconds);
  }
  if (!batch.costs[0].known()) return;

  const double plain = batch.costs[0].seconds();
  const double plain_seconds =
      plain * static_cast<double>(step.tokens) / static_cast<double>(step.num_sequences);
  plain_seconds_ += plain_seconds;
  actual_seconds_ += seconds;

  const double lost = step.asked > 0 ? seconds - plain_seconds : 0;
  const double most = std::max(kTrialAllowance * plain, trial_cost(batch));
  batch.credit = std::min(batch.credit + kMaxLoss * seconds - lost, most);
  if (trial_left_ == 0 || step.asked == 0) return;
  --trial_left_;
  if (batch.credit < 0 && trial_left_ <= kTrialSteps - kShortestTrial) trial_left_ = 0;
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

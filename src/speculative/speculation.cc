#include "speculative/speculation.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

namespace braid {

int64_t SpeculationStats::num_drafted() const {
  return std::accumulate(drafted.begin(), drafted.end(), int64_t{0});
}
int64_t SpeculationStats::num_accepted() const {
  return std::accumulate(accepted.begin(), accepted.end(), int64_t{0});
}
double SpeculationStats::acceptance_rate() const {
  const int64_t all = num_drafted();
  return all == 0 ? 0 : static_cast<double>(num_accepted()) / static_cast<double>(all);
}
double SpeculationStats::tokens_per_round() const {
  return rounds == 0 ? 0 : 1 + static_cast<double>(num_accepted()) / static_cast<double>(rounds);
}

Speculation::Speculation(const SpeculationOptions& options, const DrafterSetup& setup)
    : vocab_size_(setup.target.vocab_size()), max_drafts_(setup.max_drafts) {
  drafter_ = options.drafter(setup);
  if (options.adaptive) governor_.emplace(max_drafts_);
}

int64_t Speculation::begin_round(int64_t num_sequences) {
  asked_ = 0;
  if (failed_ || num_sequences == 0) return 0;
  asked_ = governor_ ? governor_->choose(num_sequences) : max_drafts_;
  if (governor_) {
    if (const auto report = governor_->take_report()) {
      spdlog::info("{}: {}", drafter_->name(), *report);
    }
  }
  return asked_;
}

void Speculation::draft(std::span<DraftRequest> requests) {
  round_seconds_ = 0;
  if (failed_) return;
  const auto begin = std::chrono::steady_clock::now();
  try {
    drafter_->draft(requests);
  } catch (const Error& error) {
    spdlog::warn("{}: drafting failed, decoding goes on without: {}", drafter_->name(),
                 error.what());
    failed_ = true;
    for (DraftRequest& request : requests) request.drafts.clear();
  }
  for (DraftRequest& request : requests) {
    std::vector<int32_t>& drafts = request.drafts;
    if (static_cast<int64_t>(drafts.size()) > request.max_drafts) {
      drafts.resize(static_cast<size_t>(request.max_drafts));
    }
    const auto foreign = std::find_if(drafts.begin(), drafts.end(), [&](int32_t token) {
      return token < 0 || token >= vocab_size_;
    });
    drafts.erase(foreign, drafts.end());
  }
  round_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  stats_.draft_seconds += round_seconds_;
}

void Speculation::rewind(int64_t sequence, int64_t length) {
  if (!failed_) drafter_->rewind(sequence, length);
}

void Speculation::forget(int64_t sequence) { drafter_->forget(sequence); }

void Speculation::observe_drafts(int64_t asked, int64_t drafted, int64_t accepted) {
  if (governor_) governor_->observe_drafts({.asked = asked, .accepted = accepted});
  if (drafted == 0) return;
  ++stats_.rounds;
  const auto count = [](std::vector<int64_t>& positions, int64_t n) {
    if (static_cast<int64_t>(positions.size()) < n) positions.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) ++positions[static_cast<size_t>(i)];
  };
  count(stats_.drafted, drafted);
  count(stats_.accepted, accepted);
}

void Speculation::observe_step(int64_t num_sequences, int64_t tokens, double seconds,
                               bool decoding) {
  if (governor_ && decoding && after_decoding_) {
    governor_->observe_step({.num_sequences = num_sequences,
                             .asked = asked_,
                             .tokens = tokens,
                             .seconds = seconds + round_seconds_});
  }
  after_decoding_ = decoding;
}

SpeculationStats Speculation::stats() const {
  SpeculationStats stats = stats_;
  stats.accepted.resize(stats.drafted.size());
  if (governor_ && governor_->actual_seconds() > 0 && stats.rounds > 0) {
    stats.speed_up = governor_->plain_seconds() / governor_->actual_seconds();
  }
  return stats;
}

}  // namespace braid

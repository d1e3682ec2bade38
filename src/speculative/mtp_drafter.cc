#include "speculative/mtp_drafter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "ops/elementwise/elementwise.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

// Pairs of a prompt wait until there are so many: one pass over the head's weights serves them all.
// A drafter that rests keeps the hidden states of the latest so many, at least.
constexpr int64_t kCatchUp = 64;

// Address space for the logits of one step.
constexpr size_t kWorkspaceBytes = size_t{4} << 30;

const Model& find_head(const Model& target) {
  if (target.draft_head() == nullptr) {
    throw Error(
        "--speculate mtp: the model ({}) has no multi-token-prediction head, or its files were "
        "saved without it; use ngram, model:PATH or off",
        target.family());
  }
  return *target.draft_head();
}

// More of the text is known than the target has computed and one token.
bool is_prompt(const DraftRequest& request) {
  return static_cast<int64_t>(request.tokens.size()) > request.target->length() + 1;
}

}  // namespace

CacheOptions MtpDrafter::cache_options(const DrafterSizes& sizes) {
  const int64_t longest = sizes.max_context + sizes.max_drafts;
  return {.kv_dtype = sizes.kv_dtype,
          .dynamic_kv_scales = sizes.dynamic_kv_scales,
          .max_tokens = sizes.max_sequences * longest,
          .max_sequences = sizes.max_sequences,
          .max_sequence_tokens = longest,
          .max_step_tokens = std::min(sizes.max_step_tokens, longest)};
}

int64_t MtpDrafter::max_kept_rows(const DrafterSizes& sizes) {
  return sizes.max_step_tokens + sizes.max_sequences * 2 * kCatchUp;
}

MtpDrafter::MtpDrafter(const DrafterSetup& setup)
    : head_(find_head(setup.target)),
      stream_(setup.stream),
      hidden_size_(setup.target.hidden_size()),
      pool_(head_.cache_layout(), cache_options(setup), setup.stream.device()),
      runner_(head_, pool_, setup.stream, {.precision = setup.precision}),
      vocabulary_head_(setup.stream, *head_.vocabulary_head()),
      workspace_(kWorkspaceBytes, setup.stream.device()),
      hidden_rows_(setup.stream, hidden_size_, max_kept_rows(setup)),
      sampler_(setup.stream),
      own_hidden_(DType::kF32, {setup.max_sequences, hidden_size_}, setup.stream.device()),
      older_hidden_(DType::kF32, {setup.max_sequences, hidden_size_}, setup.stream.device()) {
  BRAID_CHECK(head_.hidden_size() == hidden_size_, "a head of width {} for a model of {}",
              head_.hidden_size(), hidden_size_);
}

void MtpDrafter::draft(std::span<DraftRequest> requests) {
  make_room(requests);
  own_row_.resize(requests.size());
  num_own_ = 0;
  for (DraftRequest& request : requests) {
    request.drafts.clear();
    Sequence& sequence = sequences_.try_emplace(request.sequence, pool_).first->second;
    take_hidden(request, sequence);
    // Drafts of the round before.
    BRAID_CHECK(sequence.state.truncate(sequence.num_pairs - sequence.first_pair),
                "drafts that cannot be forgotten");
    rest(request, sequence);
  }
  compute_pairs(requests);
  continue_drafts(requests);
}

void MtpDrafter::make_room(std::span<const DraftRequest> requests) {
  int64_t count = 0;
  for (const DraftRequest& request : requests) count += request.num_hidden;
  std::vector<std::vector<int32_t>*> live;
  live.reserve(sequences_.size());
  for (auto& [id, sequence] : sequences_) live.push_back(&sequence.hidden);
  hidden_rows_.make_room(count, live);
}

void MtpDrafter::take_hidden(const DraftRequest& request, Sequence& sequence) {
  if (sequence.lost) return;
  if (sequence.num_hidden + request.num_hidden != request.target->length()) {
    sequence.lost = true;
    sequence.hidden = {};
    warn_once("mtp: a sequence began without its hidden states; it is decoded without drafts");
    return;
  }
  hidden_rows_.append(request.hidden, request.first_hidden, request.num_hidden, sequence.hidden);
  sequence.num_hidden += request.num_hidden;
}

int64_t MtpDrafter::num_pending(const DraftRequest& request, const Sequence& sequence) const {
  const int64_t tokens = static_cast<int64_t>(request.tokens.size());
  return std::min(sequence.num_hidden, tokens - 1) - sequence.num_pairs;
}

bool MtpDrafter::is_due(const DraftRequest& request, const Sequence& sequence) const {
  if (sequence.lost) return false;
  const int64_t pending = num_pending(request, sequence);
  return pending > 0 && (request.max_drafts > 0 || (is_prompt(request) && pending >= kCatchUp));
}

// Hidden states nobody has asked drafts for are dropped, and with them what was before.
void MtpDrafter::rest(const DraftRequest& request, Sequence& sequence) {
  if (sequence.lost || request.max_drafts > 0 || is_prompt(request)) return;
  const int64_t dropped = num_pending(request, sequence) - kCatchUp;
  if (dropped < kCatchUp) return;
  sequence.hidden.erase(sequence.hidden.begin(), sequence.hidden.begin() + dropped);
  sequence.num_pairs += dropped;
  sequence.first_pair = sequence.num_pairs;
  sequence.state.truncate(0);
}

// Chunks of the pairs that are due; the last of a request that wants drafts gives the first one.
void MtpDrafter::compute_pairs(std::span<DraftRequest> requests) {
  for (size_t next = 0; next < requests.size();) {
    int64_t budget = runner_.max_step_tokens();
    plan_.sequences.clear();
    request_of_.clear();
    wants_draft_.clear();
    backbone_.clear();
    while (next < requests.size() && budget > 0) {
      DraftRequest& request = requests[next];
      Sequence& sequence = sequences_.at(request.sequence);
      if (!is_due(request, sequence)) {
        ++next;
        continue;
      }
      const int64_t pending = num_pending(request, sequence);
      const int64_t count = std::min(pending, budget);
      const auto hidden = sequence.hidden.begin();
      backbone_.insert(backbone_.end(), hidden, hidden + count);
      const bool last = count == pending;
      const bool wanted = last && request.max_drafts > 0;
      plan_.sequences.push_back(
          {.sequence = &sequence.state,
           .tokens = request.tokens.subspan(static_cast<size_t>(sequence.num_pairs) + 1,
                                            static_cast<size_t>(count)),
           .logits = WantedLogits::kNone});
      request_of_.push_back(next);
      wants_draft_.push_back(wanted);
      budget -= count;
      if (!last) break;
      ++next;
    }
    if (plan_.sequences.empty()) break;
    const Workspace::Scope scope(workspace_);
    const TensorView backbone = workspace_.take(DType::kF32, {plan_.num_tokens(), hidden_size_});
    hidden_rows_.gather(backbone_, backbone);
    const StepResult result = run_step(backbone);
    for (size_t i = 0; i < request_of_.size(); ++i) {
      Sequence& sequence = sequences_.at(requests[request_of_[i]].sequence);
      const int64_t count = static_cast<int64_t>(plan_.sequences[i].tokens.size());
      sequence.num_pairs += count;
      sequence.hidden.erase(sequence.hidden.begin(), sequence.hidden.begin() + count);
    }
    pick(requests, result.hidden);
  }
}

// One row of each sequence that has a draft and wants more.
void MtpDrafter::continue_drafts(std::span<DraftRequest> requests) {
  int64_t longest = 0;
  for (const DraftRequest& request : requests) longest = std::max(longest, request.max_drafts);
  for (size_t drafts = 1; static_cast<int64_t>(drafts) < longest; ++drafts) {
    std::swap(own_hidden_, older_hidden_);
    num_own_ = 0;
    for (size_t next = 0; next < requests.size();) {
      plan_.sequences.clear();
      request_of_.clear();
      wants_draft_.clear();
      backbone_.clear();
      for (; next < requests.size() &&
             static_cast<int64_t>(request_of_.size()) < runner_.max_step_tokens();
           ++next) {
        const DraftRequest& request = requests[next];
        if (request.drafts.size() != drafts) continue;
        if (static_cast<int64_t>(drafts) >= request.max_drafts) continue;
        plan_.sequences.push_back({.sequence = &sequences_.at(request.sequence).state,
                                   .tokens = std::span(request.drafts).last(1),
                                   .logits = WantedLogits::kNone});
        request_of_.push_back(next);
        wants_draft_.push_back(true);
        backbone_.push_back(own_row_[next]);
      }
      if (plan_.sequences.empty()) continue;
      const Workspace::Scope scope(workspace_);
      const TensorView backbone = workspace_.take(DType::kF32, {plan_.num_tokens(), hidden_size_});
      gather_rows(stream_, older_hidden_.view(), backbone_, backbone);
      pick(requests, run_step(backbone).hidden);
    }
  }
}

StepResult MtpDrafter::run_step(const TensorView& backbone) {
  const StepResult result = runner_.run(plan_, {.wants_hidden = true, .backbone_hidden = backbone});
  BRAID_CHECK(result.status == StepStatus::kDone, "the cache is sized for every sequence");
  return result;
}

// hidden: [tokens of the step, hidden size]
void MtpDrafter::pick(std::span<DraftRequest> requests, const TensorView& hidden) {
  last_rows_.clear();
  chosen_.clear();
  int64_t end = 0;
  for (size_t i = 0; i < plan_.sequences.size(); ++i) {
    end += static_cast<int64_t>(plan_.sequences[i].tokens.size());
    if (!wants_draft_[i]) continue;
    last_rows_.push_back(static_cast<int32_t>(end - 1));
    chosen_.push_back(request_of_[i]);
  }
  if (chosen_.empty()) return;
  const StepScope head(stream_, /*counts=*/false);
  const auto count = static_cast<int64_t>(chosen_.size());
  const TensorView rows = own_hidden_.view().rows(num_own_, count);
  gather_rows(stream_, hidden, last_rows_, rows);
  const Workspace::Scope scope(workspace_);
  const TensorView logits = vocabulary_head_.logits(stream_, workspace_, rows);
  const std::span<const int32_t> picks = sampler_.pick(workspace_, logits, requests, chosen_);
  for (size_t i = 0; i < chosen_.size(); ++i) {
    if (picks[i] < 0) continue;
    requests[chosen_[i]].drafts.push_back(picks[i]);
    own_row_[chosen_[i]] = static_cast<int32_t>(num_own_) + static_cast<int32_t>(i);
  }
  num_own_ += count;
}

void MtpDrafter::rewind(int64_t id, int64_t length) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  if (sequence.lost || length >= sequence.num_hidden) return;
  const int64_t waiting = std::max<int64_t>(length - sequence.num_pairs, 0);
  sequence.hidden.resize(static_cast<size_t>(waiting));
  sequence.num_hidden = length;
  sequence.num_pairs = std::min(sequence.num_pairs, length);
  if (sequence.first_pair <= sequence.num_pairs) return;
  // Nothing is left of what it read.
  sequence.first_pair = sequence.num_pairs;
  sequence.state.truncate(0);
}

}  // namespace braid

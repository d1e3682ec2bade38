#include "speculative/mtp_drafter.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "ops/elementwise/elementwise.h"

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

CacheOptions cache_options(const DrafterSetup& setup) {
  const int64_t longest = setup.max_context + setup.max_drafts;
  return {.kv_dtype = setup.kv_dtype,
          .max_tokens = setup.max_sequences * longest,
          .max_sequences = setup.max_sequences,
          .max_sequence_tokens = longest,
          .max_step_tokens = std::min(setup.max_step_tokens, longest)};
}

}  // namespace

MtpDrafter::MtpDrafter(const DrafterSetup& setup)
    : head_(find_head(setup.target)),
      stream_(setup.stream),
      hidden_size_(setup.target.hidden_size()),
      pool_(head_.cache_layout(), cache_options(setup)),
      runner_(head_, pool_, setup.stream, {.precision = setup.precision}),
      vocabulary_head_(setup.stream, *head_.vocabulary_head()),
      workspace_(kWorkspaceBytes) {
  BRAID_CHECK(head_.hidden_size() == hidden_size_, "a head of width {} for a model of {}",
              head_.hidden_size(), hidden_size_);
}

void MtpDrafter::draft(std::span<DraftRequest> requests) {
  own_hidden_.resize(requests.size());
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

void MtpDrafter::take_hidden(const DraftRequest& request, Sequence& sequence) {
  const int64_t count = request.hidden.empty() ? 0 : request.hidden.dim(0);
  if (sequence.lost) return;
  if (sequence.num_hidden + count != request.target->length()) {
    sequence.lost = true;
    sequence.hidden = {};
    warn_once("mtp: a sequence began without its hidden states; it is decoded without drafts");
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float* row = request.hidden.row<float>(i);
    sequence.hidden.insert(sequence.hidden.end(), row, row + hidden_size_);
  }
  sequence.num_hidden += count;
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
  sequence.hidden.erase(sequence.hidden.begin(), sequence.hidden.begin() + dropped * hidden_size_);
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
      backbone_.insert(backbone_.end(), hidden, hidden + count * hidden_size_);
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
    const StepResult result = run_step();
    for (size_t i = 0; i < request_of_.size(); ++i) {
      Sequence& sequence = sequences_.at(requests[request_of_[i]].sequence);
      const int64_t count = static_cast<int64_t>(plan_.sequences[i].tokens.size());
      sequence.num_pairs += count;
      sequence.hidden.erase(sequence.hidden.begin(),
                            sequence.hidden.begin() + count * hidden_size_);
    }
    pick(requests, result.hidden);
  }
}

// One row of each sequence that has a draft and wants more.
void MtpDrafter::continue_drafts(std::span<DraftRequest> requests) {
  int64_t longest = 0;
  for (const DraftRequest& request : requests) longest = std::max(longest, request.max_drafts);
  for (size_t drafts = 1; static_cast<int64_t>(drafts) < longest; ++drafts) {
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
        backbone_.insert(backbone_.end(), own_hidden_[next].begin(), own_hidden_[next].end());
      }
      if (!plan_.sequences.empty()) pick(requests, run_step().hidden);
    }
  }
}

StepResult MtpDrafter::run_step() {
  const TensorView backbone(backbone_.data(), DType::kF32, {plan_.num_tokens(), hidden_size_});
  const StepResult result = runner_.run(plan_, {.wants_hidden = true, .backbone_hidden = backbone});
  BRAID_CHECK(result.status == StepStatus::kDone, "the cache is sized for every sequence");
  return result;
}

// hidden: [tokens of the step, hidden size]
void MtpDrafter::pick(std::span<DraftRequest> requests, const TensorView& hidden) {
  Workspace::Scope scope(workspace_);
  std::vector<int32_t> last_rows;
  std::vector<size_t> chosen;
  int64_t end = 0;
  for (size_t i = 0; i < plan_.sequences.size(); ++i) {
    end += static_cast<int64_t>(plan_.sequences[i].tokens.size());
    if (!wants_draft_[i]) continue;
    last_rows.push_back(static_cast<int32_t>(end - 1));
    chosen.push_back(request_of_[i]);
  }
  if (chosen.empty()) return;
  const TensorView rows =
      workspace_.take(DType::kF32, {static_cast<int64_t>(chosen.size()), hidden_size_});
  gather_rows(stream_, hidden, last_rows, rows);
  const TensorView logits = vocabulary_head_.logits(stream_, workspace_, rows);
  for (size_t i = 0; i < chosen.size(); ++i) {
    DraftRequest& request = requests[chosen[i]];
    const auto draft =
        sampler_.pick({logits.row<float>(i), static_cast<size_t>(logits.dim(1))}, request);
    if (!draft) continue;
    request.drafts.push_back(*draft);
    const float* row = rows.row<float>(i);
    own_hidden_[chosen[i]].assign(row, row + hidden_size_);
  }
}

void MtpDrafter::rewind(int64_t id, int64_t length) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  if (sequence.lost || length >= sequence.num_hidden) return;
  const int64_t waiting = std::max<int64_t>(length - sequence.num_pairs, 0);
  sequence.hidden.resize(static_cast<size_t>(waiting * hidden_size_));
  sequence.num_hidden = length;
  sequence.num_pairs = std::min(sequence.num_pairs, length);
  if (sequence.first_pair <= sequence.num_pairs) return;
  // Nothing is left of what it read.
  sequence.first_pair = sequence.num_pairs;
  sequence.state.truncate(0);
}

}  // namespace braid

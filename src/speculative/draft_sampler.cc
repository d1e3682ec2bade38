#include "speculative/draft_sampler.h"

#include "base/check.h"

namespace braid {

std::span<const DrawRule> DraftSampler::rules(std::span<const DraftRequest> requests,
                                              std::span<const size_t> request_of) {
  rules_.clear();
  if (edits_.size() < request_of.size()) edits_.resize(request_of.size());
  for (size_t i = 0; i < request_of.size(); ++i) {
    const DraftRequest& request = requests[request_of[i]];
    BRAID_CHECK(request.sampling != nullptr, "a request for drafts without sampling parameters");
    SamplingKey key = request.key;
    key.position += request.drafts.size();
    DrawRule rule =
        make_draw_rule(*request.sampling, request.history, request.drafts, key, edits_[i]);
    rule.row = static_cast<int64_t>(i);
    rule.num_logprobs = -1;
    rules_.push_back(rule);
  }
  return rules_;
}

std::span<const int32_t> DraftSampler::pick(Workspace& workspace, const TensorView& logits,
                                            std::span<const DraftRequest> requests,
                                            std::span<const size_t> request_of) {
  picks_.clear();
  const std::span<const DrawRule> rules = this->rules(requests, request_of);
  if (rules.empty()) return picks_;
  if (stream_.is_cpu()) {
    for (const DrawRule& rule : rules) {
      drawer_.draw({logits.row<float>(rule.row), static_cast<size_t>(logits.dim(1))}, rule, drawn_);
      picks_.push_back(drawn_.token);
    }
    return picks_;
  }
  const Workspace::Scope scope(workspace);
  const TensorView drawn =
      workspace.take(DType::kI32, {static_cast<int64_t>(rules.size()), drawn_columns(-1)});
  draw_tokens(stream_, workspace, logits, rules, drawn);
  const TensorView there = host_.fetch(stream_, drawn);
  for (int64_t i = 0; i < there.dim(0); ++i) picks_.push_back(*there.row<int32_t>(i));
  return picks_;
}

}  // namespace braid

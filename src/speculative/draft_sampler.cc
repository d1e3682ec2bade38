#include "speculative/draft_sampler.h"

#include "base/check.h"

namespace braid {

std::optional<int32_t> DraftSampler::pick(std::span<const float> logits,
                                          const DraftRequest& request) {
  BRAID_CHECK(request.sampling != nullptr, "a request for drafts without sampling parameters");
  SamplingKey key = request.key;
  key.position += request.drafts.size();
  const TokenHistory* history = request.history;
  std::optional<TokenHistory> longer;
  if (history != nullptr && !request.drafts.empty()) {
    longer.emplace(*history);
    for (const int32_t draft : request.drafts) longer->add_output(draft);
    history = &*longer;
  }
  return sampler_.pick(logits, *request.sampling, history, key);
}

}  // namespace braid

#include "sampling/draw_rule.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace braid {
namespace {

bool by_token(const LogitEdit& a, const LogitEdit& b) { return a.token < b.token; }

// Makes one of the edits of each token; all are ascending.
void join(std::vector<LogitEdit>& edits) {
  size_t size = 0;
  for (const LogitEdit& edit : edits) {
    if (size > 0 && edits[size - 1].token == edit.token) {
      LogitEdit& known = edits[size - 1];
      if (edit.output_count >= 0) {
        known.output_count = std::max(known.output_count, 0) + edit.output_count;
      }
      known.bias += edit.bias;
    } else {
      edits[size++] = edit;
    }
  }
  edits.resize(size);
}

}  // namespace

DrawRule make_draw_rule(const SamplingParams& params, const TokenHistory* history,
                        std::span<const int32_t> further, const SamplingKey& key,
                        std::vector<LogitEdit>& edits) {
  edits.clear();
  for (const LogitBias& entry : params.logit_bias) {
    edits.push_back({.token = entry.token, .bias = entry.bias});
  }
  for (const int32_t token : params.suppress_ids) {
    edits.push_back({.token = token, .bias = -std::numeric_limits<float>::infinity()});
  }
  if (params.has_penalties()) {
    BRAID_CHECK(history != nullptr, "penalties without a history");
    for (const int32_t token : further) edits.push_back({.token = token, .output_count = 1});
  }
  std::sort(edits.begin(), edits.end(), by_token);
  join(edits);
  if (params.has_penalties()) {
    const size_t others = edits.size();
    for (const TokenHistory::Entry& entry : history->entries()) {
      const LogitEdit edit{.token = entry.token, .output_count = entry.output_count};
      const auto end = edits.begin() + static_cast<std::ptrdiff_t>(others);
      const auto found = std::lower_bound(edits.begin(), end, edit, by_token);
      if (found != end && found->token == edit.token) {
        found->output_count = std::max(found->output_count, 0) + edit.output_count;
      } else {
        edits.push_back(edit);
      }
    }
  }
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .repetition_penalty = params.repetition_penalty,
          .presence_penalty = params.presence_penalty,
          .frequency_penalty = params.frequency_penalty,
          .num_logprobs = params.num_logprobs.value_or(-1),
          .key = key,
          .edits = edits};
}

}  // namespace braid

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/logits/draw_tokens.h"
#include "sampling/sampling_params.h"
#include "sampling/token_history.h"

namespace braid {

// What the next token of a sequence is drawn with. `history` may be null without penalties;
// `further`: output behind the history, drafts say. The rule's edits are put into `edits`, which
// must stay as it is while the rule is used.
DrawRule make_draw_rule(const SamplingParams& params, const TokenHistory* history,
                        std::span<const int32_t> further, const SamplingKey& key,
                        std::vector<LogitEdit>& edits);

}  // namespace braid

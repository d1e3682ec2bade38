#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/logits/philox.h"
#include "tensor/stream.h"
#include "tensor/tensor_view.h"
#include "tensor/workspace.h"

namespace braid {

// A change of one logit before a token is drawn.
struct LogitEdit {
  int32_t token = 0;
  int32_t output_count = -1;  // how often the text holds it behind its prompt; -1: nowhere at all,
                              // 0: in the prompt alone
  float bias = 0;             // -inf: it cannot be drawn
};

// How the token of one row is drawn, as sampling/sampling_params.h has it. The numbers are in the
// ranges given there.
struct DrawRule {
  int64_t row = 0;  // of the logits
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t num_logprobs = -1;  // -1: none; n: of the token drawn and of the n likeliest
  SamplingKey key;
  std::span<const LogitEdit> edits;  // each token once

  bool greedy() const { return temperature == 0; }
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// Log-probabilities are those of the model: the log-softmax of its logits, before any edit. They
// are always finite: nothing is reported below kMinLogprob.
struct DrawnToken {
  int32_t token = -1;             // -1: none can be drawn, all are -inf
  float logprob = 0;              // of the token, if there is one
  std::vector<TokenLogprob> top;  // likeliest first, of equals the lower id
};

constexpr float kMinLogprob = -9999;

// The order of DrawnToken::top.
inline bool likelier(const TokenLogprob& a, const TokenLogprob& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
}

// Columns of draw_tokens()' result for so many logprobs.
constexpr int64_t drawn_columns(int32_t most_logprobs) {
  return 3 + 2 * (most_logprobs > 0 ? most_logprobs : 0);
}

// Draws a token by each rule. Rules name rows of `logits`, [rows, vocab] float32, each at most
// once; rows are as they were afterwards. NaN counts as -inf, +inf as the largest float. A result
// is a function of its row and rule alone, to the bit, whatever the device.
// drawn: int32 [rules, >= drawn_columns(of the most logprobs)], for read_drawn().
void draw_tokens(Stream& stream, Workspace& workspace, const TensorView& logits,
                 std::span<const DrawRule> rules, const TensorView& drawn);

// Row `i` of a result that is on the host.
void read_drawn(const TensorView& drawn, int64_t i, DrawnToken& token);

}  // namespace braid

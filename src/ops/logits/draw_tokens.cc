#include "ops/logits/draw_tokens.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "ops/cuda/token_ops.h"
#include "ops/logits/row_drawer.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

void write_drawn(const DrawnToken& drawn, int32_t* out) {
  *out++ = drawn.token;
  *out++ = std::bit_cast<int32_t>(drawn.logprob);
  *out++ = static_cast<int32_t>(drawn.top.size());
  for (const TokenLogprob& entry : drawn.top) {
    *out++ = entry.token;
    *out++ = std::bit_cast<int32_t>(entry.logprob);
  }
}

}  // namespace

void draw_tokens(Stream& stream, Workspace& workspace, const TensorView& logits,
                 std::span<const DrawRule> rules, const TensorView& drawn) {
  const auto num_rules = static_cast<int64_t>(rules.size());
  int32_t most_logprobs = 0;
  for (const DrawRule& rule : rules) most_logprobs = std::max(most_logprobs, rule.num_logprobs);
  BRAID_CHECK(logits.rank() == 2 && drawn.rank() == 2 && drawn.dtype() == DType::kI32 &&
                  drawn.contiguous() && drawn.dim(0) == num_rules &&
                  drawn.dim(1) >= drawn_columns(most_logprobs),
              "logits {}, {} rules with up to {} logprobs, drawn {}", to_string(logits.shape()),
              num_rules, most_logprobs, to_string(drawn.shape()));
  const int64_t width = logits.dim(1);
  BRAID_CHECK(width < int64_t{1} << 19, "a vocabulary of {}", width);
  for (const DrawRule& rule : rules) {
    BRAID_CHECK(rule.row >= 0 && rule.row < logits.dim(0), "row {} of {}", rule.row, logits.dim(0));
    for (const LogitEdit& edit : rule.edits) {
      BRAID_CHECK(edit.token >= 0 && edit.token < width, "token {} of {}", edit.token, width);
    }
  }
  if (rules.empty() || width == 0) return;
  const OpScope op(stream, "draw_tokens", [&] {
    return OpWork{.activation_bytes = 4.0 * static_cast<double>(num_rules * width)};
  });
  if (!stream.is_cpu()) return cuda::draw_tokens(stream, workspace, logits, rules, drawn);
  stream.pool().parallel_for(num_rules, 1, [&](int64_t begin, int64_t end, int) {
    // Scratch of the size of a vocabulary; results depend on the arguments alone.
    thread_local RowDrawer drawer;
    thread_local DrawnToken token;
    for (int64_t i = begin; i < end; ++i) {
      const DrawRule& rule = rules[i];
      drawer.draw({logits.row<float>(rule.row), static_cast<size_t>(width)}, rule, token);
      write_drawn(token, drawn.row<int32_t>(i));
    }
  });
}

void read_drawn(const TensorView& drawn, int64_t i, DrawnToken& token) {
  const int32_t* words = drawn.row<int32_t>(i);
  token.token = words[0];
  token.logprob = std::bit_cast<float>(words[1]);
  token.top.clear();
  for (int32_t j = 0; j < words[2]; ++j) {
    token.top.push_back({words[3 + 2 * j], std::bit_cast<float>(words[4 + 2 * j])});
  }
  std::sort(token.top.begin(), token.top.end(), likelier);
}

}  // namespace braid

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/logits/candidates.h"
#include "ops/logits/draw_tokens.h"

namespace braid {

// Draws tokens of rows on the host, as draw_tokens() does. The result is a function of the
// arguments alone; the object only keeps scratch memory. For one thread at a time.
class RowDrawer {
 public:
  // logits: [vocab]; rule.row is ignored.
  void draw(std::span<const float> logits, const DrawRule& rule, DrawnToken& drawn);

 private:
  int32_t draw_token(const DrawRule& rule);
  void report_logprobs(std::span<const float> logits, int32_t num_logprobs, DrawnToken& drawn);

  std::vector<float> logits_;  // after the edits
  std::vector<Candidate> candidates_;
  std::vector<Candidate> scratch_;
};

}  // namespace braid

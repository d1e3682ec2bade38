#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/logits/row_drawer.h"
#include "sampling/draw_rule.h"
#include "speculative/drafter.h"
#include "tensor/host_copy.h"
#include "tensor/workspace.h"

namespace braid {

// Picks the next guesses of requests from rows of a draft model's logits, as the target will draw
// the tokens from its own: with the same parameters and random numbers. That is the likeliest guess
// at temperature 0, and one that is right more often than the likeliest at others.
class DraftSampler {
 public:
  explicit DraftSampler(Stream& stream) : stream_(stream) {}

  // For the next guess of request request_of[i] after its drafts so far, from row i. Valid until
  // the next call.
  std::span<const DrawRule> rules(std::span<const DraftRequest> requests,
                                  std::span<const size_t> request_of);

  // These guesses from logits [rows, vocab] in the stream's memory; -1: none can be drawn. Valid
  // until the next call.
  std::span<const int32_t> pick(Workspace& workspace, const TensorView& logits,
                                std::span<const DraftRequest> requests,
                                std::span<const size_t> request_of);

 private:
  Stream& stream_;
  std::vector<DrawRule> rules_;
  std::vector<std::vector<LogitEdit>> edits_;
  std::vector<int32_t> picks_;
  RowDrawer drawer_;
  DrawnToken drawn_;
  HostCopy host_;
};

}  // namespace braid

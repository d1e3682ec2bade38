#pragma once

#include "layers/placement.h"
#include "ops/linear/linear.h"
#include "tensor/workspace.h"

namespace braid {

// A vocabulary head for drafting: reading it is most of what a draft costs, so plain weights are
// rounded to 4 bits. A guess may be worse for it, never the text.
class RoundedHead {
 public:
  RoundedHead() = default;
  // Rounds a copy, on the stream's threads, for the stream's device, where the matrix is; unless it
  // is stored in blocks already or its width is not a multiple of theirs.
  RoundedHead(Stream& stream, const Weight& head);

  // What the rounded copy of such a matrix takes on the device, and beside it while it is made.
  static PlacementCount count(const Weight& head, Device device);

  int64_t vocab_size() const { return weight_.rows(); }
  // hidden: [rows, hidden]; result: logits [rows, vocab], in the workspace.
  TensorView logits(Stream& stream, Workspace& workspace, const TensorView& hidden) const;

 private:
  Weight weight_;
};

}  // namespace braid

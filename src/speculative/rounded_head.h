#pragma once

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

  int64_t vocab_size() const { return weight_.rows(); }
  // hidden: [rows, hidden]; result: logits [rows, vocab], in the workspace.
  TensorView logits(Stream& stream, Workspace& workspace, const TensorView& hidden) const;

 private:
  Weight weight_;
};

}  // namespace braid

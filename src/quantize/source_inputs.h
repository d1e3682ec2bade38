#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "layers/step_context.h"
#include "tensor/buffer.h"

namespace braid {

// What enters a layer's matrices in one batch, kept to be paired with what enters them in another
// pass over the same tokens. Of experts nothing: another pass may send them other tokens.
class SourceInputs : public StepContext::ProductObserver {
 public:
  // Borrows the stream. `readers`: matrices as a layer calls them. Ends a batch
  // (CalibrationPass::Enough) when all of them have been seen in it.
  SourceInputs(Stream& stream, std::set<std::string, std::less<>> readers);

  void input(std::span<const std::string_view> readers, const TensorView& x) override;
  void expert_input(std::span<const std::string_view> readers, const TensorView& x,
                    const TensorView& offsets) override;

  // [tokens, in] of the last batch, where the stream is; none of a matrix that is not known.
  std::optional<TensorView> find(std::string_view reader) const;

 private:
  struct Kept {
    Buffer memory;
    TensorView view;
  };
  void end_batch_if_seen(std::span<const std::string_view> readers);

  Stream& stream_;
  std::set<std::string, std::less<>> wanted_, seen_;
  // By the first of the matrices that read the input.
  std::map<std::string, Kept, std::less<>> kept_;
  std::map<std::string, std::string, std::less<>> first_of_;
};

}  // namespace braid

#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "layers/step_context.h"
#include "quantize/hessian.h"
#include "quantize/source_inputs.h"
#include "tensor/host_copy.h"

namespace braid {

// Notes in which order a layer's products come.
class ReaderOrder : public StepContext::ProductObserver {
 public:
  void input(std::span<const std::string_view> readers, const TensorView& x) override;
  void expert_input(std::span<const std::string_view> readers, const TensorView& x,
                    const TensorView& offsets) override;

  // Tensors that read the same input have the same number, later ones a greater one; those that
  // were not seen the greatest.
  size_t stage_of(const std::string& tensor) const;

 private:
  void note(std::span<const std::string_view> readers);

  std::map<std::string, size_t, std::less<>> stages_;
  size_t next_ = 0;
};

// Watches a layer's products and keeps the Hessians of the matrices asked for: one for all matrices
// that read the same input, and one an expert. They are where the stream computes. Ends a batch
// (CalibrationPass::Enough) when all of them have been seen in it.
class LayerHessians : public StepContext::ProductObserver {
 public:
  // Of one input. By expert; of other matrices one. Null: the expert has seen no input.
  using Family = std::vector<std::unique_ptr<Hessian>>;

  // `wanted`: canonical names of tensors; of experts stored one by one, those of each.
  LayerHessians(Stream& stream, Workspace& workspace, const std::vector<std::string>& wanted);

  void input(std::span<const std::string_view> readers, const TensorView& x) override;
  void expert_input(std::span<const std::string_view> readers, const TensorView& x,
                    const TensorView& offsets) override;

  // From now on inputs are paired with those of the source that are there, experts' apart; null: no
  // longer.
  void pair_with(const SourceInputs* source) { source_ = source; }
  // Of those asked for, the matrices that a layer calls so and that are no stacks of experts.
  static std::set<std::string, std::less<>> single_readers(const std::vector<std::string>& tensors);

  // The Hessian of an expert of a tensor (of other matrices: 0), or null. Experts stored one by one
  // are found by their own names.
  struct Reader {
    std::shared_ptr<Family> family;
    size_t member = 0;
  };
  Reader find(const std::string& tensor, size_t expert) const;

  // What summing took.
  double seconds() const { return seconds_; }
  double operations() const { return operations_; }

 private:
  std::shared_ptr<Family> family_of(std::span<const std::string_view> readers, size_t members);
  Hessian& add(Family& family, size_t member, const TensorView& x);
  void end_batch_if_seen(std::span<const std::string_view> readers);

  Stream& stream_;
  Workspace& workspace_;
  std::set<std::string, std::less<>> wanted_;
  const SourceInputs* source_ = nullptr;
  std::set<std::string_view> seen_;  // of those, in this batch
  HostCopy offsets_;
  std::map<std::string, std::shared_ptr<Family>, std::less<>> families_;  // by reader
  double seconds_ = 0, operations_ = 0;
};

}  // namespace braid

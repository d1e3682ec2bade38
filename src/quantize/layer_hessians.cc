#include "quantize/layer_hessians.h"

#include "quantize/calibration_pass.h"
#include "quantize/module_kind.h"
#include "quantize/phase_timer.h"

namespace braid {
namespace {

// What a layer calls the stack, or the matrix, that a tensor is or belongs to.
std::string reader_name(const std::string& tensor) {
  const auto one = expert_name(tensor);
  if (!one) return tensor;
  std::string_view matrix = one->rest;  // ".gate_proj.weight"
  if (matrix.ends_with(".weight")) matrix.remove_suffix(7);
  return std::string(one->stem.substr(0, one->stem.size() - 1)) + std::string(matrix);
}

}  // namespace

void ReaderOrder::note(std::span<const std::string_view> readers) {
  for (const std::string_view reader : readers) stages_.try_emplace(std::string(reader), next_);
  ++next_;
}
void ReaderOrder::input(std::span<const std::string_view> readers, const TensorView&) {
  note(readers);
}
void ReaderOrder::expert_input(std::span<const std::string_view> readers, const TensorView&,
                               const TensorView&) {
  note(readers);
}
size_t ReaderOrder::stage_of(const std::string& tensor) const {
  const auto found = stages_.find(reader_name(tensor));
  return found == stages_.end() ? next_ : found->second;
}

LayerHessians::LayerHessians(Stream& stream, Workspace& workspace,
                             const std::vector<std::string>& wanted)
    : stream_(stream), workspace_(workspace) {
  for (const std::string& tensor : wanted) wanted_.insert(reader_name(tensor));
}

std::set<std::string, std::less<>> LayerHessians::single_readers(
    const std::vector<std::string>& tensors) {
  std::set<std::string, std::less<>> readers;
  for (const std::string& tensor : tensors) {
    if (module_kind(tensor) != ModuleKind::kExperts) readers.insert(reader_name(tensor));
  }
  return readers;
}

std::shared_ptr<LayerHessians::Family> LayerHessians::family_of(
    std::span<const std::string_view> readers, size_t members) {
  std::shared_ptr<Family> family;
  for (const std::string_view reader : readers) {
    if (!wanted_.contains(reader)) continue;
    std::shared_ptr<Family>& known = families_[std::string(reader)];
    // Parts of a joint tensor read the same input, and so does whoever reads along.
    if (known == nullptr) {
      if (family == nullptr) family = std::make_shared<Family>(members);
      known = family;
    }
    family = known;
  }
  return family;
}

Hessian& LayerHessians::add(Family& family, size_t member, const TensorView& x) {
  std::unique_ptr<Hessian>& hessian = family[member];
  if (hessian == nullptr) hessian = std::make_unique<Hessian>(x.dim(1), stream_.device());
  hessian->add(stream_, workspace_, x);
  operations_ += static_cast<double>(x.dim(0)) * static_cast<double>(x.dim(1) * (x.dim(1) + 1));
  return *hessian;
}

void LayerHessians::input(std::span<const std::string_view> readers, const TensorView& x) {
  const std::shared_ptr<Family> family = family_of(readers, 1);
  if (family == nullptr || x.dim(0) == 0) return;
  {
    const PhaseTimer timer(stream_, seconds_);
    Hessian& hessian = add(*family, 0, x);
    for (size_t i = 0; source_ != nullptr && i < readers.size(); ++i) {
      const std::optional<TensorView> y = source_->find(readers[i]);
      if (!y) continue;
      hessian.add_source(stream_, workspace_, *y, x);
      operations_ += 2.0 * static_cast<double>(x.dim(0)) * static_cast<double>(x.dim(1) * x.dim(1));
      break;
    }
    timer.stop();
  }
  end_batch_if_seen(readers);
}

void LayerHessians::expert_input(std::span<const std::string_view> readers, const TensorView& x,
                                 const TensorView& offsets) {
  const auto num_experts = static_cast<size_t>(offsets.num_elements() - 1);
  const std::shared_ptr<Family> family = family_of(readers, num_experts);
  if (family == nullptr) return;
  {
    const PhaseTimer timer(stream_, seconds_);
    const int32_t* const begin = offsets_.fetch(stream_, offsets).data<int32_t>();
    for (size_t e = 0; e < num_experts; ++e) {
      const int64_t count = begin[e + 1] - begin[e];
      if (count > 0) add(*family, e, x.rows(begin[e], count));
    }
    timer.stop();
  }
  end_batch_if_seen(readers);
}

void LayerHessians::end_batch_if_seen(std::span<const std::string_view> readers) {
  for (const std::string_view reader : readers) {
    if (const auto found = wanted_.find(reader); found != wanted_.end()) seen_.insert(*found);
  }
  if (seen_.size() < wanted_.size()) return;
  seen_.clear();
  throw CalibrationPass::Enough();
}

LayerHessians::Reader LayerHessians::find(const std::string& tensor, size_t expert) const {
  if (const auto one = expert_name(tensor)) expert = static_cast<size_t>(one->expert);
  const auto found = families_.find(reader_name(tensor));
  if (found == families_.end() || expert >= found->second->size()) return {};
  return {found->second, expert};
}

}  // namespace braid

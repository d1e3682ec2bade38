#include "ops/fused/residual.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/elementwise/elementwise.h"
#include "ops/fused/prepared_input.h"
#include "ops/norm/rms_norm.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

bool same(const InputNorm& a, const InputNorm& b) {
  return a.weight.raw() == b.weight.raw() && a.epsilon == b.epsilon && a.rounding == b.rounding;
}

// The place of the first norm that is equal to norms[i].
size_t first_equal(std::span<const InputNorm> norms, size_t i) {
  size_t first = 0;
  while (!same(norms[first], norms[i])) ++first;
  return first;
}

void copy_rows(Stream& stream, const TensorView& from, std::span<const int32_t> rows,
               const TensorView& to) {
  const auto* source = static_cast<const std::byte*>(from.raw());
  auto* target = static_cast<std::byte*>(to.raw());
  const auto element = static_cast<int64_t>(dtype_bytes(from.dtype()));
  const int64_t row_bytes = from.dim(1) * element;
  stream.pool().parallel_for(to.dim(0), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(source + rows[i] * from.row_stride() * element, row_bytes,
                  target + i * to.row_stride() * element);
    }
  });
}

// Whether one pass on a device can make all these inputs.
bool one_pass(const Stream& stream, const TensorView& x, std::span<const InputNorm> norms) {
  return !stream.is_cpu() && !x.empty() &&
         std::all_of(norms.begin(), norms.end(), [](const InputNorm& norm) {
           return norm.rounding.precision != ActivationPrecision::kF32;
         });
}

bool takes_codes(Stream& stream, const TensorView& x, const InputRounding& rounding) {
  return cuda::takes_token_codes(stream, rounding, x.dim(1));
}

// Calls add(norms, inputs) for those that a pass which writes x makes, once for equal ones, and
// makes the others from x. gives_codes: the pass makes codes, too.
template <typename Add>
void add_and_prepare(Stream& stream, Workspace& workspace, const TensorView& x, bool gives_codes,
                     std::span<const InputNorm> norms, std::span<LinearInput> inputs,
                     const Add& add) {
  std::array<size_t, kMaxInputNorms> source{};
  std::array<InputNorm, kMaxInputNorms> distinct;
  std::array<LinearInput, kMaxInputNorms> results;
  size_t num_distinct = 0;
  for (size_t i = 0; i < norms.size(); ++i) {
    const size_t first = first_equal(norms, i);
    source[i] = first == i ? num_distinct : source[first];
    if (first == i) distinct[num_distinct++] = norms[i];
  }
  std::array<InputNorm, kMaxInputNorms> passed_norms;
  std::array<LinearInput, kMaxInputNorms> passed;
  const auto passes = [&](const InputNorm& norm) {
    return gives_codes || !takes_codes(stream, x, norm.rounding);
  };
  size_t num_passed = 0;
  for (size_t i = 0; i < num_distinct; ++i) {
    if (passes(distinct[i])) passed_norms[num_passed++] = distinct[i];
  }
  add(std::span<const InputNorm>(passed_norms).first(num_passed),
      std::span<LinearInput>(passed).first(num_passed));
  for (size_t i = 0, next = 0; i < num_distinct; ++i) {
    results[i] = passes(distinct[i])
                     ? passed[next++]
                     : cuda::prepare_normed_input(stream, workspace, x, distinct[i].weight,
                                                  distinct[i].epsilon, distinct[i].rounding);
  }
  for (size_t i = 0; i < norms.size(); ++i) inputs[i] = results[source[i]];
}

// Of a pass that adds to each element of x `terms` others, which are that many bytes.
OpWork work_of(const TensorView& x, double terms, double term_bytes, size_t num_inputs) {
  const auto elements = static_cast<double>(x.num_elements());
  const auto inputs = static_cast<double>(num_inputs);
  return {.activation_bytes = (term_bytes + 8 + 2 * inputs) * elements,
          .operations = (2 * terms + 4 + 4 * inputs) * elements};
}
// Of one that adds experts' rows and another one.
OpWork work_of(const TensorView& x, const ExpertRows& experts, size_t num_inputs) {
  const auto k = static_cast<double>(experts.experts.dim(1));
  const auto row = static_cast<double>(dtype_bytes(experts.rows.dtype()));
  return work_of(x, k + 1, k * row + 4, num_inputs);
}

void check_experts(const ExpertRows& experts, const TensorView& x) {
  BRAID_CHECK(x.rank() == 2 && experts.experts.rank() == 2 &&
                  experts.experts.shape() == experts.weights.shape() &&
                  experts.experts.dim(0) == x.dim(0) &&
                  (experts.rows.shape() == Shape{experts.experts.num_elements(), x.dim(1)}),
              "x {}, expert outputs {}, experts {}", to_string(x.shape()),
              to_string(experts.rows.shape()), to_string(experts.experts.shape()));
}

}  // namespace

bool stays_in_room(Stream& stream, const TensorView& x, const InputRounding& rounding) {
  return !stream.is_cpu() && rounding.precision != ActivationPrecision::kF32 &&
         (cuda::sums_give_codes(x) || !takes_codes(stream, x, rounding));
}

void add_branch(Stream& stream, Workspace& workspace, const ResidualBranch& branch,
                const TensorView& x, std::span<const InputNorm> norms,
                std::span<LinearInput> inputs) {
  BRAID_CHECK(x.rank() == 2 && x.shape() == branch.y.shape() && norms.size() == inputs.size() &&
                  norms.size() <= kMaxInputNorms,
              "x {}, y {}, {} norms", to_string(x.shape()), to_string(branch.y.shape()),
              norms.size());
  if (one_pass(stream, x, norms)) {
    const OpScope op(stream, "add_branch", [&] { return work_of(x, 1, 4, norms.size()); });
    const bool gives_codes = cuda::can_add_coded_branch(branch, x);
    add_and_prepare(
        stream, workspace, x, gives_codes, norms, inputs, [&](const auto& some, const auto& made) {
          const bool codes = std::any_of(some.begin(), some.end(), [&](const InputNorm& norm) {
            return takes_codes(stream, x, norm.rounding);
          });
          (codes ? cuda::add_coded_branch : cuda::add_branch)(stream, workspace, branch, x, some,
                                                              made);
        });
    return;
  }
  if (branch.normed) {
    add_rms_norm(stream, branch.y, branch.norm, branch.epsilon, x);
  } else {
    add(stream, x, branch.y);
  }
  if (branch.factor != 1) scale(stream, x, branch.factor);
  for (size_t i = 0; i < norms.size(); ++i) {
    const size_t first = first_equal(norms, i);
    inputs[i] = first < i ? inputs[first]
                          : prepare_normed_input(stream, workspace, x, norms[i].weight,
                                                 norms[i].epsilon, norms[i].rounding);
  }
}

void add_experts(Stream& stream, Workspace& workspace, const ExpertRows& experts,
                 const SharedExpert& shared, const TensorView& x, std::span<const InputNorm> norms,
                 std::span<LinearInput> inputs) {
  check_experts(experts, x);
  BRAID_CHECK(shared.rows.shape() == x.shape() && shared.gate.rows() == 1 &&
                  norms.size() == inputs.size() && norms.size() <= kMaxInputNorms,
              "x {}, shared {}, gate {}, {} norms", to_string(x.shape()),
              to_string(shared.rows.shape()), to_string(shared.gate.shape), norms.size());
  if (one_pass(stream, x, norms) && cuda::can_add_experts(stream, experts, shared, x)) {
    const OpScope op(stream, "add_experts", [&] { return work_of(x, experts, norms.size()); });
    add_and_prepare(stream, workspace, x, cuda::sums_give_codes(x), norms, inputs,
                    [&](const auto& some, const auto& made) {
                      cuda::add_experts(stream, workspace, experts, shared, x, some, made);
                    });
    return;
  }
  const TensorView combined = workspace.take(DType::kF32, x.shape());
  const TensorView gate = workspace.take(DType::kF32, {x.dim(0), 1});
  ExpertGroups groups = experts.groups;
  finish_routing(stream, groups, experts.experts, experts.weights);
  combine_experts(stream, experts.rows, groups, experts.experts, experts.weights, combined);
  linear(stream, shared.gate, shared.gate_input, gate);
  add_sigmoid_scaled(stream, combined, shared.rows, gate);
  add_branch(stream, workspace, {.y = combined, .normed = false}, x, norms, inputs);
}

void combine_with_dense(Stream& stream, Workspace& workspace, const TensorView& expert_outputs,
                        const ExpertGroups& groups, const TensorView& experts,
                        const TensorView& weights, const NormedBranches& norms,
                        const TensorView& dense) {
  BRAID_CHECK(dense.rank() == 2 && expert_outputs.rank() == 2 &&
                  dense.dim(1) == expert_outputs.dim(1) && dense.dim(0) == experts.dim(0),
              "dense {}, expert outputs {}", to_string(dense.shape()),
              to_string(expert_outputs.shape()));
  if (!stream.is_cpu() && !dense.empty()) {
    const OpScope op(stream, "combine_with_dense", [&] {
      const double elements = static_cast<double>(dense.num_elements());
      const double k = static_cast<double>(experts.dim(1));
      const auto pair_bytes = static_cast<double>(dtype_bytes(expert_outputs.dtype()));
      return OpWork{.activation_bytes = (pair_bytes * k + 8) * elements,
                    .operations = (2 * k + 9) * elements};
    });
    return cuda::combine_with_dense(stream, expert_outputs, groups, experts, weights, norms, dense);
  }
  Workspace::Scope scope(workspace);
  const TensorView combined = workspace.take(DType::kF32, dense.shape());
  rms_norm(stream, dense, norms.dense_norm, norms.epsilon, dense);
  combine_experts(stream, expert_outputs, groups, experts, weights, combined);
  add_rms_norm(stream, combined, norms.experts_norm, norms.epsilon, dense);
}

void add_dense_and_experts(Stream& stream, Workspace& workspace, const ExpertRows& experts,
                           const NormedBranches& halves, const ResidualBranch& branch,
                           const TensorView& x, std::span<const InputNorm> norms,
                           std::span<LinearInput> inputs) {
  check_experts(experts, x);
  BRAID_CHECK(branch.y.shape() == x.shape() && norms.size() == inputs.size() &&
                  norms.size() <= kMaxInputNorms,
              "x {}, dense {}, {} norms", to_string(x.shape()), to_string(branch.y.shape()),
              norms.size());
  if (branch.normed && one_pass(stream, x, norms) &&
      cuda::can_add_dense_and_experts(stream, experts, halves, branch, x)) {
    const OpScope op(stream, "add_dense_and_experts",
                     [&] { return work_of(x, experts, norms.size()); });
    add_and_prepare(stream, workspace, x, cuda::sums_give_codes(x), norms, inputs,
                    [&](const auto& some, const auto& made) {
                      cuda::add_dense_and_experts(stream, workspace, experts, halves, branch, x,
                                                  some, made);
                    });
    return;
  }
  ExpertGroups groups = experts.groups;
  finish_routing(stream, groups, experts.experts, experts.weights);
  combine_with_dense(stream, workspace, experts.rows, groups, experts.experts, experts.weights,
                     halves, branch.y);
  add_branch(stream, workspace, branch, x, norms, inputs);
}

LinearInput gather_input(Stream& stream, Workspace& workspace, const LinearInput& x,
                         const TensorView& rows) {
  const int64_t count = rows.num_elements();
  const OpScope op(stream, "gather_input", [&] {
    const double elements = static_cast<double>(count * x.x.dim(1));
    return OpWork{.activation_bytes =
                      elements * (x.precision == ActivationPrecision::kInt8 ? 2.5 : 8)};
  });
  if (!stream.is_cpu() && x.token_codes.rank() == 2 && count > 0) {
    LinearInput sorted = cuda::gather_token_codes(stream, workspace, x, rows);
    if (x.packed.rank() == 2) {
      sorted.packed = cuda::gather_packed_input(stream, workspace, x, rows).packed;
    }
    return sorted;
  }
  if (!stream.is_cpu() && x.packed.rank() == 2 && count > 0) {
    return cuda::gather_packed_input(stream, workspace, x, rows);
  }
  const bool per_token = x.token_codes.rank() == 2;
  if (x.precision != ActivationPrecision::kInt8 || per_token) {
    const TensorView sorted = workspace.take(DType::kF32, {count, x.x.dim(1)});
    gather_rows(stream, x.x, rows, sorted);
    return prepare_linear_input(stream, workspace, sorted, x.precision,
                                {.per_block = x.codes.rank() == 2, .per_token = per_token});
  }
  // Codes, so that a token is rounded once for all its experts. Float32 rows are for weights in
  // plain formats only.
  const std::span<const int32_t> from = IndexList(rows).on_host();
  LinearInput sorted;
  sorted.precision = x.precision;
  sorted.x = workspace.take(DType::kF32, {count, x.x.dim(1)});
  sorted.codes = workspace.take(DType::kI8, {count, x.codes.dim(1)});
  sorted.scales = workspace.take(DType::kF32, {count, x.scales.dim(1)});
  sorted.sums = workspace.take(DType::kI32, {count, x.sums.dim(1)});
  copy_rows(stream, x.x, from, sorted.x);
  copy_rows(stream, x.codes, from, sorted.codes);
  copy_rows(stream, x.scales, from, sorted.scales);
  copy_rows(stream, x.sums, from, sorted.sums);
  return sorted;
}

}  // namespace braid

#include "base/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/token_ops.h"
#include "ops/fused/cuda/token_inputs.h"
#include "ops/linear/cuda/product_paths.h"

namespace braid::cuda {
namespace {

// A stream of a CUDA device cannot be made in this build, so nothing comes here.
[[noreturn]] void refuse() {
  throw Error("this build has no CUDA backend; configure with the preset 'cuda'");
}

}  // namespace

int upload_sequences(Stream&, std::span<const SequenceRows>) { refuse(); }
void upload_sequences(Stream&, std::span<const RecurrentRows>) { refuse(); }
void rms_norm(Stream&, const TensorView&, const TensorView&, float, const TensorView&) { refuse(); }
void add_rms_norm(Stream&, const TensorView&, const TensorView&, float, const TensorView&) {
  refuse();
}
void gated_rms_norm(Stream&, const TensorView&, const TensorView&, const TensorView&, float,
                    const TensorView&) {
  refuse();
}
void gelu_tanh_mul(Stream&, const TensorView&, const TensorView&, const TensorView&) { refuse(); }
void silu_mul(Stream&, const TensorView&, const TensorView&, const TensorView&) { refuse(); }
void sigmoid_mul(Stream&, const TensorView&, const TensorView&) { refuse(); }
void add_sigmoid_scaled(Stream&, const TensorView&, const TensorView&, const TensorView&) {
  refuse();
}
void add(Stream&, const TensorView&, const TensorView&) { refuse(); }
void scale(Stream&, const TensorView&, float) { refuse(); }
void softcap(Stream&, const TensorView&, float) { refuse(); }
void gather_rows(Stream&, const TensorView&, const IndexList&, const TensorView&) { refuse(); }
void scan_logits(Stream&, Workspace&, const TensorView&, const TensorView&) { refuse(); }
void draw_tokens(Stream&, Workspace&, const TensorView&, std::span<const DrawRule>,
                 const TensorView&) {
  refuse();
}
void feed_tokens(Stream&, const TensorView&, const IndexList&, const TensorView&) { refuse(); }
void spread_logits(Stream&, const TensorView&, const TensorView&, const TensorView&,
                   const IndexList&, const TensorView&) {
  refuse();
}
void embedding(Stream&, const Weight&, const IndexList&, float, const TensorView&) { refuse(); }
void rope_tables(Stream&, const IndexList&, const TensorView&, const TensorView&,
                 const TensorView&) {
  refuse();
}
void rope(Stream&, const TensorView&, const TensorView&, const TensorView&, int64_t) { refuse(); }
void top_k_experts(Stream&, const TensorView&, const TensorView&, const TensorView&,
                   const TensorView&, RouterSoftmax) {
  refuse();
}
void group_by_expert(Stream&, const TensorView&, const ExpertGroups&) { refuse(); }
bool can_route_in_place(const Stream&, const TensorView&, int64_t) { refuse(); }
bool route_to_experts(Stream&, const TensorView&, const TensorView&, const TensorView&,
                      const TensorView&, RouterSoftmax, const ExpertGroups&) {
  refuse();
}
void combine_experts(Stream&, const TensorView&, const ExpertGroups&, const TensorView&,
                     const TensorView&, const TensorView&) {
  refuse();
}
void write_kv(Stream&, const TensorView&, const TensorView&, std::span<const SequenceRows>,
              const PagedKv&) {
  refuse();
}
void attention(Stream&, Workspace&, const TensorView&, const PagedKv&,
               std::span<const SequenceRows>, const AttentionOptions&, const TensorView&) {
  refuse();
}
void causal_conv_silu(Stream&, const TensorView&, const TensorView&, const RecurrentLayer&,
                      std::span<const RecurrentRows>, const TensorView&) {
  refuse();
}
void gated_delta(Stream&, Workspace&, const GatedDeltaInputs&, const RecurrentLayer&,
                 std::span<const RecurrentRows>, const GatedDeltaOptions&, const TensorView&) {
  refuse();
}
bool takes_token_codes(Stream&, const InputRounding&, int64_t) { refuse(); }
LinearInput gated_norm_token_codes(Stream&, Workspace&, const TensorView&, const TensorView&,
                                   const TensorView&, float, bool) {
  refuse();
}
LinearInput prepare_normed_input(Stream&, Workspace&, const TensorView&, const TensorView&, float,
                                 const InputRounding&) {
  refuse();
}
LinearInput prepare_sigmoid_gated_input(Stream&, Workspace&, const TensorView&, const TensorView&,
                                        const InputRounding&) {
  refuse();
}
LinearInput prepare_gated_input(Stream&, Workspace&, Activation, const TensorView&,
                                const TensorView&, const InputRounding&) {
  refuse();
}
void add_branch(Stream&, Workspace&, const ResidualBranch&, const TensorView&,
                std::span<const InputNorm>, std::span<LinearInput>) {
  refuse();
}
void combine_with_dense(Stream&, const TensorView&, const ExpertGroups&, const TensorView&,
                        const TensorView&, const NormedBranches&, const TensorView&) {
  refuse();
}
bool sums_give_codes(const TensorView&) { refuse(); }
bool can_add_coded_branch(const ResidualBranch&, const TensorView&) { refuse(); }
void add_coded_branch(Stream&, Workspace&, const ResidualBranch&, const TensorView&,
                      std::span<const InputNorm>, std::span<LinearInput>) {
  refuse();
}
bool can_add_experts(Stream&, const ExpertRows&, const SharedExpert&, const TensorView&) {
  refuse();
}
void add_experts(Stream&, Workspace&, const ExpertRows&, const SharedExpert&, const TensorView&,
                 std::span<const InputNorm>, std::span<LinearInput>) {
  refuse();
}
bool can_add_dense_and_experts(Stream&, const ExpertRows&, const NormedBranches&,
                               const ResidualBranch&, const TensorView&) {
  refuse();
}
void add_dense_and_experts(Stream&, Workspace&, const ExpertRows&, const NormedBranches&,
                           const ResidualBranch&, const TensorView&, std::span<const InputNorm>,
                           std::span<LinearInput>) {
  refuse();
}
bool can_delta_step(Stream&, const DeltaStepCall&, const RecurrentLayer&,
                    std::span<const RecurrentRows>) {
  refuse();
}
LinearInput delta_step(Stream&, Workspace&, const DeltaStepCall&, const RecurrentLayer&,
                       std::span<const RecurrentRows>) {
  refuse();
}
LinearInput gather_packed_input(Stream&, Workspace&, const LinearInput&, const TensorView&) {
  refuse();
}
LinearInput gather_token_codes(Stream&, Workspace&, const LinearInput&, const TensorView&) {
  refuse();
}
bool prepare_heads(Stream&, const TensorView&, const TensorView&, const TensorView&,
                   const HeadOptions&, std::span<const SequenceRows>, const PagedKv&, bool) {
  refuse();
}
std::optional<LinearInput> attend_heads(Stream&, Workspace&, const AttendHeadsCall&, bool) {
  refuse();
}
std::optional<LinearInput> attend_prompts(Stream&, Workspace&, const AttendHeadsCall&) { refuse(); }
bool gated_mlps(Stream&, Workspace&, std::span<const GatedMlpCall>) { refuse(); }
bool int8_mlps(Stream&, Workspace&, std::span<const GatedMlpCall>) { refuse(); }
const ProductTable* product_table(Stream&) { refuse(); }
Products products_of(const Weight&, const LinearInput&) { refuse(); }
PathSet possible_paths(Stream&, const Products&) { refuse(); }
ProductPath gated_path(Stream&, const GatedMlpCall&, bool) { refuse(); }
bool wide_gated_mlp(Stream&, Workspace&, const GatedMlpCall&) { refuse(); }
LinearInput prepare_linear_input(Stream&, Workspace&, const TensorView&, const InputRounding&) {
  refuse();
}
bool linear(Stream&, const Weight&, const LinearInput&, const TensorView&, int64_t) { refuse(); }
void grouped_linear(Stream&, const Weight&, const LinearInput&, const IndexList&,
                    const TensorView&) {
  refuse();
}

}  // namespace braid::cuda

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/cache_pool.h"
#include "layers/step_context.h"
#include "models/model.h"
#include "scheduler/step_plan.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/host_copy.h"
#include "tensor/stream.h"
#include "tensor/workspace.h"

namespace braid {

struct RunnerOptions {
  ActivationPrecision precision = ActivationPrecision::kF32;
  // Address space for one step's activations; memory is used up to the largest step.
  size_t workspace_bytes = size_t{16} << 30;
  // On a CUDA device: decode steps are queued as graphs, one for each number of sequences, recorded
  // when it comes up for the second time.
  bool use_graphs = true;
  // On a CUDA device: a token's results do not depend on its batch mates nor on how prompts are
  // split, to the bit, at some price. (On the CPU that is always so.)
  bool deterministic = false;
};

struct RunOptions {
  StepContext::Observer* observer = nullptr;
  // Without, rows of logits stay on the stream's device until Runner::logits_row() asks for them.
  bool wants_logits = true;
  // Ask for StepResult::hidden.
  bool wants_hidden = false;
  // For draft heads: the other model's hidden states [tokens of the step, its hidden size].
  TensorView backbone_hidden;
};

enum class StepStatus {
  kDone,
  kCacheFull,        // too few free pages; the plan may work once sequences have ended
  kSequenceTooLong,  // a sequence would exceed the cache's max_sequence_tokens
};

// To which token a row of logits belongs.
struct LogitsRow {
  int32_t sequence = 0;  // index in the plan
  int32_t token = 0;     // index among that sequence's new tokens
  bool finite = true;    // false: the row holds a NaN or an infinity
  int32_t largest = -1;  // the token of the highest logit, of equals the lowest; -1: all are -inf
};

struct StepResult {
  StepStatus status = StepStatus::kDone;
  int32_t sequence = -1;  // index in the plan of the one without room
  // float32 [rows.size(), vocab], on the host; empty if none were wanted (RunOptions).
  TensorView logits;
  std::span<const LogitsRow> rows;  // in the order of the plan
  // [tokens of the step, hidden size], in the order of the plan, on the stream's device.
  TensorView hidden;
};

// Executes step plans on one rank: lays the planned tokens flat, builds the StepContext, runs the
// model. Owns the step's workspace and all row lists, so that steps after the first ones do not
// allocate. Borrows the rest; used by one thread.
class Runner {
 public:
  Runner(const Model& model, CachePool& pool, Stream& stream, const RunnerOptions& options = {});

  // One forward pass over all planned tokens, at most the pool's max_step_tokens. Finds room for
  // every sequence or, with a status other than kDone, changes nothing. If it throws (a token
  // outside the vocabulary, a step too large for the workspace), no sequence has changed either,
  // except that one with recurrent layers may be left invalid. A sequence with recurrent layers may
  // leave at most the pool's max_logged_tokens uncommitted.
  // The result's views are valid until the next call.
  StepResult run(const StepPlan& plan, const RunOptions& options = {});

  // Row `i` of the last step's rows of logits, on the host; valid until the next call of this or
  // of run().
  std::span<const float> logits_row(size_t i);

  const Model& model() const { return model_; }
  CachePool& pool() const { return pool_; }
  int64_t max_step_tokens() const { return pool_.plan().options.max_step_tokens; }
  const Workspace& workspace() const { return workspace_; }

 private:
  // What a step leaves on the device.
  struct Outputs {
    TensorView logits, summaries, hidden;
  };

  Outputs forward(const StepPlan& plan, StepContext& step);
  void upload_tables();
  bool reserve_all(const StepPlan& plan, StepResult& result);
  void lay_flat(const StepPlan& plan);
  void read_summaries(const TensorView& summaries);

  const Model& model_;
  CachePool& pool_;
  Stream& stream_;
  ActivationPrecision precision_;
  bool use_graphs_, deterministic_;
  Workspace workspace_;
  std::optional<Workspace::Scope> step_scope_;  // holds the last step's logits
  TensorView step_logits_;                      // [rows, vocab], on the stream's device
  HostCopy host_logits_, host_summaries_;

  // Decode steps of one shape.
  struct Graph {
    std::unique_ptr<cuda::Recording> recording;  // null: the shape was seen once
    Outputs outputs;
  };
  std::map<std::array<size_t, 4>, Graph> graphs_;

  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> logits_rows_;
  std::vector<LogitsRow> rows_;
  std::vector<std::vector<SequenceRows>> group_rows_;  // [groups][sequences]
  std::vector<StepContext::LayerKv> layer_kv_;
  std::vector<std::vector<RecurrentRows>> recurrent_rows_;  // [recurrent groups][sequences]
  std::vector<StepContext::LayerRecurrent> layer_recurrent_;
};

}  // namespace braid

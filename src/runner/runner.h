#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/cache_pool.h"
#include "layers/step_context.h"
#include "models/model.h"
#include "ops/logits/draw_tokens.h"
#include "scheduler/step_plan.h"
#include "tensor/cuda/device_event.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/host_copy.h"
#include "tensor/stream.h"
#include "tensor/workspace.h"

namespace braid {

struct RunnerOptions {
  ActivationPrecision precision = ActivationPrecision::kF32;
  // Address space for one step's activations; memory is used up to the largest step.
  size_t workspace_bytes = size_t{16} << 30;
  // On a CUDA device: steps of few tokens are queued as graphs, one for each list of how many
  // tokens the sequences have, recorded when it comes up for the second time.
  bool use_graphs = true;
  // On a CUDA device: a token's results do not depend on its batch mates nor on how prompts are
  // split, to the bit, at some price. (On the CPU that is always so.)
  bool deterministic = false;
};

struct RunOptions {
  StepContext::Observer* observer = nullptr;
  // Without, rows of logits stay on the stream's device until Runner::logits_row() asks for them.
  bool wants_logits = true;
  // Tokens to draw of the step's rows of logits; rows in the order of StepResult::rows.
  std::span<const DrawRule> draws;
  // Ask for StepResult::hidden.
  bool wants_hidden = false;
  // For draft heads: the other model's hidden states [tokens of the step, its hidden size].
  TensorView backbone_hidden;
  // [tokens of the step]: the row of the step launched before whose token this one is, as its rules
  // have drawn it or, without rules, the largest of its logits; -1: as the plan has it. Empty: all
  // are. The plan's ids of fed tokens are not looked at.
  std::span<const int32_t> fed_from;
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
  std::span<const LogitsRow> rows;    // in the order of the plan
  std::span<const DrawnToken> drawn;  // one of each rule
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

  // The two halves of run(), so that on a device a step can be queued before the one in front of it
  // is done: launch() queues it, and tells if there was no room; finish() waits for the oldest step
  // that is on its way, of at most kMostFlights. launch() is done with the plan and the options
  // when it returns, except for backbone_hidden. Tokens are committed, where the plan says so, when
  // launched. Of a result, only rows and drawn tokens outlive the launch of a step that was
  // launched before their own finish(); any other launch ends them.
  static constexpr int kMostFlights = 2;
  // Kept at a time, those used last.
  static constexpr size_t kMostGraphs = 64;
  StepResult launch(const StepPlan& plan, const RunOptions& options);
  StepResult finish();
  int num_in_flight() const { return static_cast<int>(num_launched_ - num_finished_); }

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
  // A step on its way.
  struct Flight {
    StepResult result;
    std::vector<LogitsRow> rows;
    std::vector<DrawnToken> drawn;
    HostCopy copied_summaries, copied_drawn;
    TensorView summaries, drawn_words;  // on the host, once it is done
    cuda::DeviceEvent done;
  };

  Outputs forward(const StepPlan& plan, const RunOptions& options, StepContext& step);
  void draw(const RunOptions& options, const Outputs& outputs, Flight& flight);
  void feed_tokens(std::span<const int32_t> fed_from);
  void upload_tables();
  bool reserve_all(const StepPlan& plan, StepResult& result);
  void lay_flat(const StepPlan& plan, std::vector<LogitsRow>& rows);
  void read_results(Flight& flight);

  const Model& model_;
  CachePool& pool_;
  Stream& stream_;
  ActivationPrecision precision_;
  bool use_graphs_, deterministic_;
  Workspace workspace_;
  std::optional<Workspace::Scope> step_scope_;  // holds the last step's logits
  TensorView step_logits_;                      // [rows, vocab], on the stream's device
  HostCopy host_logits_;
  TensorView chosen_;  // int32 [rows, columns]: tokens of the last step, in the first column

  std::array<Flight, kMostFlights> flights_;
  size_t num_launched_ = 0, num_finished_ = 0;

  // Steps of one shape.
  struct Graph {
    std::vector<size_t> shape;
    std::unique_ptr<cuda::Recording> recording;  // null: the shape was seen once
    Outputs outputs;
    size_t used_bytes = 0;  // of the workspace, after the step
  };
  std::list<Graph> graphs_;  // the one used last in front
  std::vector<size_t> shape_;

  std::vector<int32_t> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> logits_rows_;
  std::vector<int32_t> fed_from_;
  std::vector<std::vector<SequenceRows>> group_rows_;  // [groups][sequences]
  std::vector<StepContext::LayerKv> layer_kv_;
  std::vector<std::vector<RecurrentRows>> recurrent_rows_;  // [recurrent groups][sequences]
  std::vector<StepContext::LayerRecurrent> layer_recurrent_;
};

}  // namespace braid

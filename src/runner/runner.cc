#include "runner/runner.h"

#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/logits/scan_logits.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

void check_tokens(const StepPlan& plan, int64_t vocab_size, int64_t max_step_tokens) {
  BRAID_CHECK(!plan.sequences.empty() && plan.num_tokens() <= max_step_tokens,
              "{} sequences with {} tokens, at most {}", plan.sequences.size(), plan.num_tokens(),
              max_step_tokens);
  for (const SequenceStep& step : plan.sequences) {
    BRAID_CHECK(!step.tokens.empty(), "a sequence without new tokens");
    for (const int32_t token : step.tokens) {
      if (token < 0 || token >= vocab_size) {
        throw Error("token id {} is outside the model's vocabulary of {}", token, vocab_size);
      }
    }
  }
}

// Forgets what the plan's sequences have reserved, unless told to keep it. Once the forward pass
// has begun, their recurrent states are not what they were.
class ReservationGuard {
 public:
  explicit ReservationGuard(const StepPlan& plan) : plan_(&plan) {}
  ~ReservationGuard() {
    if (plan_ == nullptr) return;
    for (const SequenceStep& step : plan_->sequences) {
      if (began_) step.sequence->invalidate();
      step.sequence->commit(0);
    }
  }
  void begin() { began_ = true; }
  ReservationGuard(const ReservationGuard&) = delete;
  ReservationGuard& operator=(const ReservationGuard&) = delete;
  void keep() { plan_ = nullptr; }

 private:
  const StepPlan* plan_;
  bool began_ = false;
};

// Hands layer outputs to the step's observer, on the host.
class HostObserver : public StepContext::Observer {
 public:
  HostObserver(StepContext::Observer* observer, const Stream& stream)
      : observer_(observer), stream_(stream) {}
  void layer_output(int64_t layer, const TensorView& x) override {
    observer_->layer_output(layer, copy_.fetch(stream_, x));
  }

 private:
  StepContext::Observer* observer_;
  const Stream& stream_;
  HostCopy copy_;
};

// The tables that ops put on a CUDA device are shared by the ops of a step.
class StepTables {
 public:
  explicit StepTables(Stream& stream) : stream_(stream) {
    if (!stream_.is_cpu()) stream_.cuda().begin_step();
  }
  ~StepTables() {
    if (!stream_.is_cpu()) stream_.cuda().end_step();
  }
  StepTables(const StepTables&) = delete;
  StepTables& operator=(const StepTables&) = delete;

 private:
  Stream& stream_;
};

}  // namespace

Runner::Runner(const Model& model, CachePool& pool, Stream& stream, const RunnerOptions& options)
    : model_(model),
      pool_(pool),
      stream_(stream),
      precision_(options.precision),
      use_graphs_(options.use_graphs),
      deterministic_(options.deterministic),
      workspace_(options.workspace_bytes, stream.device()),
      group_rows_(pool.num_groups()),
      recurrent_rows_(pool.num_recurrent_groups()) {
  BRAID_CHECK(pool.num_layers() == model.num_layers(), "a cache of {} layers for a model of {}",
              pool.num_layers(), model.num_layers());
  for (int64_t layer = 0; layer < pool.num_layers(); ++layer) {
    layer_kv_.push_back({pool.layer_kv(layer), {}});
    layer_recurrent_.push_back({pool.layer_recurrent(layer), {}});
  }
}

StepResult Runner::run(const StepPlan& plan, const RunOptions& options) {
  step_scope_.reset();
  rows_.clear();
  check_tokens(plan, model_.vocab_size(), max_step_tokens());

  StepResult result;
  if (!reserve_all(plan, result)) return result;
  ReservationGuard guard(plan);
  lay_flat(plan);

  step_scope_.emplace(workspace_);
  StepContext step{.stream = stream_,
                   .workspace = workspace_,
                   .precision = precision_,
                   .token_ids = token_ids_,
                   .positions = positions_,
                   .logits_rows = logits_rows_,
                   .layer_kv = layer_kv_,
                   .layer_recurrent = layer_recurrent_,
                   .backbone_hidden = options.backbone_hidden,
                   .wants_hidden = options.wants_hidden,
                   .observer = options.observer};
  HostObserver host_observer(options.observer, stream_);
  if (options.observer != nullptr) step.observer = &host_observer;
  guard.begin();
  const StepScope step_profile(stream_);
  const StepTables tables(stream_);
  if (!stream_.is_cpu()) stream_.cuda().set_deterministic(deterministic_);
  const Outputs outputs = forward(plan, step);
  if (!rows_.empty()) {
    step_logits_ = outputs.logits;
    if (options.wants_logits) result.logits = host_logits_.fetch(stream_, step_logits_);
    read_summaries(outputs.summaries);
  }
  if (options.wants_hidden) {
    BRAID_CHECK(outputs.hidden.rank() == 2 && outputs.hidden.dim(0) == step.num_tokens(),
                "hidden states {} for {} tokens", to_string(outputs.hidden.shape()),
                step.num_tokens());
    result.hidden = outputs.hidden;
  }
  result.rows = rows_;
  guard.keep();
  for (const SequenceStep& s : plan.sequences) {
    s.sequence->set_written(/*logged=*/!s.commit);
    if (s.commit) s.sequence->commit(s.sequence->reserved());
  }
  return result;
}

// Every layer reads these; the same uploads in the same order for every step of a shape.
void Runner::upload_tables() {
  for (const auto* list : {&token_ids_, &positions_, &logits_rows_}) {
    cuda::on_device(stream_.cuda(), IndexList(*list));
  }
  for (const auto& rows : group_rows_) cuda::upload_sequences(stream_, rows);
  for (const auto& rows : recurrent_rows_) cuda::upload_sequences(stream_, rows);
}

Runner::Outputs Runner::forward(const StepPlan& plan, StepContext& step) {
  const auto run = [&] {
    Outputs outputs{model_.forward(step), {}, step.hidden};
    if (rows_.empty()) return outputs;
    const auto num_rows = static_cast<int64_t>(rows_.size());
    const TensorView& logits = outputs.logits;
    BRAID_CHECK(
        logits.rank() == 2 && logits.dim(0) == num_rows && logits.dim(1) == model_.vocab_size(),
        "logits {} for {} rows", to_string(logits.shape()), num_rows);
    const LayerScope layer(stream_, "head");
    outputs.summaries = workspace_.take(DType::kI32, {num_rows, 2});
    scan_logits(stream_, workspace_, logits, outputs.summaries);
    return outputs;
  };
  if (stream_.is_cpu()) return run();
  upload_tables();
  const bool decodes = rows_.size() == plan.sequences.size() &&
                       step.num_tokens() == static_cast<int64_t>(rows_.size());
  if (!use_graphs_ || !decodes || step.observer != nullptr || stream_.profiler() != nullptr ||
      !step.backbone_hidden.empty()) {
    return run();
  }
  size_t num_logged = 0;
  for (const SequenceStep& s : plan.sequences) num_logged += s.commit ? 0 : 1;
  // Ops choose what they launch by the number of rows and by whether any of them is logged.
  const auto [known, first_time] =
      graphs_.try_emplace({plan.sequences.size(), stream_.cuda().table_layout(),
                           size_t{step.wants_hidden}, num_logged});
  // Recording needs the memory that a step in the usual way has taken.
  if (first_time) return run();
  Graph& graph = known->second;
  if (graph.recording == nullptr) {
    stream_.cuda().start_recording();
    try {
      graph.outputs = run();
    } catch (...) {
      stream_.cuda().stop_recording();
      throw;
    }
    graph.recording = stream_.cuda().stop_recording();
  }
  graph.recording->replay();
  return graph.outputs;
}

bool Runner::reserve_all(const StepPlan& plan, StepResult& result) {
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    SequenceState& sequence = *plan.sequences[i].sequence;
    BRAID_CHECK(&sequence.pool() == &pool_, "sequence {} of the plan is of another pool", i);
    BRAID_CHECK(sequence.reserved() == 0,
                "sequence {} of the plan appears twice or has uncommitted tokens", i);
    const int64_t count = static_cast<int64_t>(plan.sequences[i].tokens.size());
    BRAID_CHECK(plan.sequences[i].commit || pool_.num_recurrent_groups() == 0 ||
                    count <= pool_.plan().options.max_logged_tokens,
                "sequence {} of the plan: {} tokens in a log of {}", i, count,
                pool_.plan().options.max_logged_tokens);
    if (sequence.reserve(count)) continue;
    result.status =
        count > sequence.remaining_tokens() ? StepStatus::kSequenceTooLong : StepStatus::kCacheFull;
    result.sequence = static_cast<int32_t>(i);
    for (size_t j = 0; j < i; ++j) plan.sequences[j].sequence->commit(0);
    return false;
  }
  return true;
}

void Runner::lay_flat(const StepPlan& plan) {
  token_ids_.clear();
  positions_.clear();
  logits_rows_.clear();
  for (auto& rows : group_rows_) rows.clear();
  for (auto& rows : recurrent_rows_) rows.clear();

  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& step = plan.sequences[i];
    const int64_t first_row = static_cast<int64_t>(token_ids_.size());
    const int64_t count = static_cast<int64_t>(step.tokens.size());
    const int64_t first_position = step.sequence->length();
    for (int64_t t = 0; t < count; ++t) {
      token_ids_.push_back(step.tokens[t]);
      positions_.push_back(static_cast<int32_t>(first_position + t));
      const bool wanted = step.logits == WantedLogits::kAll ||
                          (step.logits == WantedLogits::kLast && t == count - 1);
      if (!wanted) continue;
      logits_rows_.push_back(static_cast<int32_t>(first_row + t));
      rows_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(t)});
    }
    for (int g = 0; g < pool_.num_groups(); ++g) {
      group_rows_[g].push_back({first_row, count, first_position, step.sequence->pages(g)});
    }
    for (int g = 0; g < pool_.num_recurrent_groups(); ++g) {
      recurrent_rows_[g].push_back({.first_row = first_row,
                                    .num_rows = count,
                                    .slot = step.sequence->slot(g),
                                    .fresh = first_position == 0,
                                    .num_replayed = step.sequence->num_replayed(),
                                    .logged = !step.commit});
    }
  }
  for (int64_t layer = 0; layer < pool_.num_layers(); ++layer) {
    const int group = pool_.layer_group(layer);
    if (group >= 0) layer_kv_[layer].sequences = group_rows_[group];
    const int recurrent_group = pool_.layer_recurrent_group(layer);
    if (recurrent_group >= 0) {
      layer_recurrent_[layer].sequences = recurrent_rows_[recurrent_group];
    }
  }
}

std::span<const float> Runner::logits_row(size_t i) {
  BRAID_CHECK(i < rows_.size(), "row {} of {}", i, rows_.size());
  const TensorView row = host_logits_.fetch(stream_, step_logits_.rows(static_cast<int64_t>(i), 1));
  return {row.data<float>(), static_cast<size_t>(row.dim(1))};
}

void Runner::read_summaries(const TensorView& summaries) {
  const TensorView there = host_summaries_.fetch(stream_, summaries);
  for (size_t i = 0; i < rows_.size(); ++i) {
    LogitsSummary summary;
    std::memcpy(&summary, there.row<int32_t>(static_cast<int64_t>(i)), sizeof(summary));
    rows_[i].finite = summary.finite != 0;
    rows_[i].largest = summary.largest;
  }
}

}  // namespace braid

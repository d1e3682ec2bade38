#include "runner/runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/cuda/product_paths.h"
#include "ops/logits/feed_tokens.h"
#include "ops/logits/scan_logits.h"
#include "tensor/cuda/stream_state.h"
#include "tensor/profiler.h"
#include "tensor/step_tables.h"

namespace braid {
namespace {

// Steps of more are not worth a graph: they take long enough to be queued meanwhile.
constexpr int64_t kMostGraphTokens = 256;

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
    layer_kv_.push_back({layer_kv(model, pool, layer), {}});
    layer_recurrent_.push_back({pool.layer_recurrent(layer), {}});
  }
  if (!stream_.is_cpu()) cuda::product_table(stream_);  // a bad file is refused here
}

StepResult Runner::run(const StepPlan& plan, const RunOptions& options) {
  BRAID_CHECK(num_in_flight() == 0, "a step while {} others are on their way", num_in_flight());
  const StepResult launched = launch(plan, options);
  return launched.status == StepStatus::kDone ? finish() : launched;
}

StepResult Runner::launch(const StepPlan& plan, const RunOptions& options) {
  BRAID_CHECK(num_in_flight() < kMostFlights, "more than {} steps at a time", kMostFlights);
  if (num_in_flight() == 0) num_launched_ = num_finished_ = 0;
  Flight& flight = flights_[num_launched_ % kMostFlights];
  step_scope_.reset();
  flight.rows.clear();
  flight.result = {};
  check_tokens(plan, model_.vocab_size(), max_step_tokens());

  StepResult& result = flight.result;
  if (!reserve_all(plan, result)) return result;
  ReservationGuard guard(plan);
  lay_flat(plan, flight.rows);

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
  const Outputs outputs = forward(plan, options, step);
  draw(options, outputs, flight);
  if (!flight.rows.empty()) {
    step_logits_ = outputs.logits;
    if (options.wants_logits) result.logits = host_logits_.fetch(stream_, step_logits_);
  }
  if (options.wants_hidden) {
    BRAID_CHECK(outputs.hidden.rank() == 2 && outputs.hidden.dim(0) == step.num_tokens(),
                "hidden states {} for {} tokens", to_string(outputs.hidden.shape()),
                step.num_tokens());
    result.hidden = outputs.hidden;
  }
  guard.keep();
  for (const SequenceStep& s : plan.sequences) {
    s.sequence->set_written(/*logged=*/!s.commit);
    if (s.commit) s.sequence->commit(s.sequence->reserved());
  }
  ++num_launched_;
  return result;
}

StepResult Runner::finish() {
  BRAID_CHECK(num_in_flight() > 0, "no step is on its way");
  Flight& flight = flights_[num_finished_++ % kMostFlights];
  if (!stream_.is_cpu()) {
    flight.done.wait();
    read_results(flight);
  }
  flight.result.rows = flight.rows;
  flight.result.drawn = flight.drawn;
  return flight.result;
}

// Draws what is asked for, and sends the host what it is to know of the rows.
void Runner::draw(const RunOptions& options, const Outputs& outputs, Flight& flight) {
  chosen_ = outputs.summaries;
  if (!flight.rows.empty()) {
    flight.summaries = flight.copied_summaries.start(stream_, outputs.summaries);
  }
  flight.drawn.resize(options.draws.size());
  if (!options.draws.empty()) {
    int32_t most_logprobs = 0;
    for (const DrawRule& rule : options.draws) {
      most_logprobs = std::max(most_logprobs, rule.num_logprobs);
    }
    chosen_ = workspace_.take(
        DType::kI32, {static_cast<int64_t>(options.draws.size()), drawn_columns(most_logprobs)});
    draw_tokens(stream_, workspace_, outputs.logits, options.draws, chosen_);
    flight.drawn_words = flight.copied_drawn.start(stream_, chosen_);
  }
  if (stream_.is_cpu()) {
    read_results(flight);
  } else {
    flight.done.record(stream_.cuda());
  }
}

// Every layer reads these; the same uploads in the same order for every step of a shape, which
// begins with what ops choose their kernels by.
void Runner::upload_tables() {
  shape_.clear();
  for (const auto* list : {&token_ids_, &positions_, &logits_rows_}) {
    cuda::on_device(stream_.cuda(), IndexList(*list));
  }
  for (const auto& rows : group_rows_) {
    shape_.push_back(static_cast<size_t>(cuda::upload_sequences(stream_, rows)));
  }
  for (const auto& rows : recurrent_rows_) cuda::upload_sequences(stream_, rows);
}

// Puts tokens that the step in front has chosen into the list on the device.
void Runner::feed_tokens(std::span<const int32_t> fed_from) {
  if (fed_from.empty()) return;
  BRAID_CHECK(fed_from.size() == token_ids_.size(), "{} of {} tokens are fed", fed_from.size(),
              token_ids_.size());
  fed_from_.assign(fed_from.begin(), fed_from.end());
  // The step's ops read the list where it is; it is the runner's until the step ends.
  auto* ids = stream_.is_cpu()
                  ? token_ids_.data()
                  : const_cast<int32_t*>(cuda::on_device(stream_.cuda(), IndexList(token_ids_)));
  braid::feed_tokens(
      stream_, chosen_, fed_from_,
      TensorView(ids, DType::kI32, {static_cast<int64_t>(token_ids_.size())}, stream_.device()));
}

Runner::Outputs Runner::forward(const StepPlan& plan, const RunOptions& options,
                                StepContext& step) {
  const int64_t num_rows = static_cast<int64_t>(logits_rows_.size());
  const auto run = [&] {
    Outputs outputs{model_.forward(step), {}, step.hidden};
    if (num_rows == 0) return outputs;
    const TensorView& logits = outputs.logits;
    BRAID_CHECK(
        logits.rank() == 2 && logits.dim(0) == num_rows && logits.dim(1) == model_.vocab_size(),
        "logits {} for {} rows", to_string(logits.shape()), num_rows);
    const LayerScope layer(stream_, "head");
    outputs.summaries = workspace_.take(DType::kI32, {num_rows, 2});
    scan_logits(stream_, workspace_, logits, outputs.summaries);
    return outputs;
  };
  if (!stream_.is_cpu()) upload_tables();
  feed_tokens(options.fed_from);
  const bool decodes =
      num_rows == step.num_tokens() || (num_rows == 0 && !step.backbone_hidden.empty());
  if (stream_.is_cpu() || !use_graphs_ || !decodes || step.num_tokens() > kMostGraphTokens ||
      step.observer != nullptr || stream_.profiler() != nullptr) {
    return run();
  }
  // Ops choose what they launch by the numbers of rows and by whether any of them is logged, too.
  for (const size_t more :
       {stream_.cuda().table_layout(), size_t{step.wants_hidden}, logits_rows_.size(),
        reinterpret_cast<size_t>(step.backbone_hidden.raw())}) {
    shape_.push_back(more);
  }
  for (const SequenceStep& s : plan.sequences) {
    shape_.push_back(2 * s.tokens.size() + (s.commit ? 0 : 1));
  }
  const auto known = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const Graph& graph) { return graph.shape == shape_; });
  if (known == graphs_.end()) {
    if (graphs_.size() == kMostGraphs) {
      stream_.synchronize();  // it may be running
      graphs_.pop_back();
    }
    graphs_.push_front({.shape = shape_});
    // Recording needs the memory that a step in the usual way has taken.
    return run();
  }
  graphs_.splice(graphs_.begin(), graphs_, known);
  Graph& graph = graphs_.front();
  if (graph.recording == nullptr) {
    stream_.cuda().start_recording();
    try {
      graph.outputs = run();
    } catch (...) {
      stream_.cuda().stop_recording();
      throw;
    }
    graph.recording = stream_.cuda().stop_recording();
    graph.used_bytes = workspace_.used_bytes();
  } else {
    // What the step leaves is not to be overwritten by what is drawn from it.
    workspace_.take(DType::kI8, {static_cast<int64_t>(graph.used_bytes - workspace_.used_bytes())});
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

void Runner::lay_flat(const StepPlan& plan, std::vector<LogitsRow>& rows) {
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
      rows.push_back({static_cast<int32_t>(i), static_cast<int32_t>(t)});
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
  BRAID_CHECK(i < logits_rows_.size(), "row {} of {}", i, logits_rows_.size());
  const TensorView row = host_logits_.fetch(stream_, step_logits_.rows(static_cast<int64_t>(i), 1));
  return {row.data<float>(), static_cast<size_t>(row.dim(1))};
}

void Runner::read_results(Flight& flight) {
  for (size_t i = 0; i < flight.rows.size(); ++i) {
    LogitsSummary summary;
    std::memcpy(&summary, flight.summaries.row<int32_t>(static_cast<int64_t>(i)), sizeof(summary));
    flight.rows[i].finite = summary.finite != 0;
    flight.rows[i].largest = summary.largest;
  }
  for (size_t i = 0; i < flight.drawn.size(); ++i) {
    read_drawn(flight.drawn_words, static_cast<int64_t>(i), flight.drawn[i]);
  }
}

}  // namespace braid

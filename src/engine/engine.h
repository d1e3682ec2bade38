#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cache/cache_pool.h"
#include "engine/generation.h"
#include "engine/loaded_model.h"
#include "runner/runner.h"
#include "sampling/sampler.h"
#include "sampling/token_history.h"
#include "scheduler/chunk_planner.h"
#include "speculative/speculation.h"
#include "tensor/stream.h"

namespace braid {

struct EngineOptions {
  ThreadPoolOptions threads;
  ActivationPrecision precision = ActivationPrecision::kInt8;
  bool deterministic = false;  // RunnerOptions
  DType kv_dtype = DType::kBF16;
  bool dynamic_kv_scales = false;  // CacheOptions; of a draft model's cache, too
  int64_t max_context = 0;    // tokens of one sequence; 0: the model's, at most kDefaultContext
  int64_t max_sequences = 1;  // computed at a time; more wait
  // Most tokens in one forward pass; a model whose prompts want to be split at multiples of some
  // number (Model::prefill_alignment) may get up to that many more.
  int64_t batch_tokens = 512;
  // Keep the cache of the request that finished last; one whose prompt begins with the same tokens
  // computes only the rest. For conversations.
  bool reuse_last = false;
  // Changes no text, only its speed.
  SpeculationOptions speculation;
  // Most memory for a step's activations; a step that needs more fails. 0: no limit worth the name.
  int64_t workspace_bytes = 0;
  // Watches the ops, if given; must outlive the engine.
  Profiler* profiler = nullptr;
  // Decode steps are queued before the tokens of the step in front are known, which reach them on
  // the device. Changes no text. On the CPU there is nothing to gain by it: kAlways is for tests.
  enum class RunAhead : uint8_t { kNever, kOnDevices, kAlways };
  RunAhead run_ahead = RunAhead::kOnDevices;

  static constexpr int64_t kDefaultContext = 32768;
};

// What an engine with these options makes its cache of, given the context it settles on. Throws
// Error for a context that the model does not have.
int64_t resolve_context(const Model& model, int64_t asked);
CacheOptions cache_options(const Model& model, const EngineOptions& options, int64_t max_context);
// What a drafter of an engine with this cache is told.
DrafterSizes drafter_sizes(const EngineOptions& options, const CacheOptions& cache);

struct EngineStats {
  int64_t prompt_tokens = 0;  // computed
  int64_t reused_tokens = 0;  // taken from an earlier request
  int64_t generated_tokens = 0;
  double prefill_seconds = 0;  // steps that computed prompt tokens
  double decode_seconds = 0;   // the others
  int64_t decode_tokens = 0;   // drawn in decode steps
  int64_t steps_ahead = 0;     // launched before the tokens in front of them were known
};

// The step loop: admit, plan, run, sample, commit, draft. On a device, the next step is on its way
// while the host looks at the tokens of this one; a sequence that turns out to have ended has then
// been computed once for nothing.
//
// One thread owns it and everything in it.
// A request's tokens depend neither on what else is computed beside it nor on drafts: each token is
// drawn from the target's own logits with the random number of its position, and a draft only
// counts if it is the token drawn.
class Engine {
 public:
  // The model must outlive the engine.
  Engine(const LoadedModel& loaded, const EngineOptions& options);
  ~Engine();

  // Queues a request. Throws Error naming the limit if it can never be computed: an empty prompt,
  // ids outside the vocabulary, a prompt that leaves no room in the context, parameters out of
  // range. A max_new_tokens beyond the context is no error: the reply ends where the context does.
  RequestId submit(GenerationRequest request);

  // Ends a request, waiting or running; its last event comes from the next step(). Ids that are
  // unknown or finished are ignored.
  void cancel(RequestId id);

  // One forward pass over the running requests. Returns what it brought, in the order of
  // submission: an event for each token, several for a request whose drafts were accepted. What
  // goes wrong with one request (logits that are not finite, say) ends that request alone; a failed
  // forward pass ends those that took part in it.
  std::vector<TokenEvent> step();

  // Nothing waits or runs.
  bool idle() const { return running_.empty() && waiting_.empty(); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t max_context() const { return max_context_; }
  const EngineStats& stats() const { return stats_; }
  void reset_stats();
  // Nothing without speculation.
  std::optional<SpeculationStats> speculation_stats() const;
  const CachePool& cache() const { return pool_; }
  const Runner& runner() const { return runner_; }

 private:
  struct Sequence;

  void end_cancelled(std::vector<TokenEvent>& events);
  void admit();
  void start(Sequence& sequence);
  // A step that was launched.
  struct Flight {
    StepPlan plan;
    std::vector<Sequence*> owners;  // of the plan's sequences; null once they have ended
    int64_t prompt_tokens = 0;
    bool ahead = false;  // launched before the one in front was done
    std::string error;   // it could not be launched
  };

  void plan_step();
  void run_step(std::vector<TokenEvent>& events);
  bool runs_ahead() const;
  bool can_run_ahead(const Flight& flight) const;
  bool ends_for_sure(const Sequence& sequence) const;
  void launch_planned();
  void launch_ahead();
  void launch(Flight flight, std::span<const DrawRule> rules, std::span<const int32_t> fed_from);
  void drop_dead_flights();
  int64_t accept_rows(Sequence& sequence, const SequenceStep& step, const StepResult& result,
                      size_t& row, std::vector<TokenEvent>& events);
  TokenEvent accept_logits(Sequence& sequence, const StepResult& result, size_t row);
  std::span<const DrawRule> draw_rules(const Flight& flight, int64_t num_unknown);
  void accept_token(Sequence& sequence, TokenEvent& event);
  void finish(Sequence& sequence, TokenEvent& event, FinishReason reason);
  void draft_next(const Flight& flight, const StepResult& result);
  void retire_finished();
  void forget_drafts(const Sequence& sequence);

  const LoadedModel& loaded_;
  EngineOptions options_;
  int64_t max_context_;
  ThreadPool threads_;
  Stream stream_;
  CachePool pool_;
  Runner runner_;
  Sampler sampler_;
  std::optional<Speculation> speculation_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::unique_ptr<Sequence> retained_;  // the last finished one, with reuse_last
  std::vector<PendingTokens> pending_;
  std::unordered_map<const SequenceState*, Sequence*> owners_;  // of the running states
  StepPlan plan_;
  // On a device, all rows of a step are drawn in one go: by these rules, if any is more than the
  // largest of its logits.
  std::vector<DrawRule> rules_;
  std::vector<std::vector<LogitEdit>> rule_edits_;  // [rules]
  std::vector<int32_t> fed_from_;
  std::deque<Flight> flights_;  // the oldest in front
  std::chrono::steady_clock::time_point last_step_end_;
  std::vector<DraftRequest> draft_requests_;
  RequestId next_id_ = 0;
  EngineStats stats_;
};

}  // namespace braid

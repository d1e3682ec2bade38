#include "benchmark/model_benchmark.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "cache/cache_pool.h"
#include "runner/runner.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUpSteps = 4;  // of a decode row

// A number of threads with all that runs on them.
struct Lane {
  Lane(const Model& model, int num_threads, const CacheOptions& cache,
       const ModelBenchmarkOptions& options)
      : threads({.num_threads = num_threads, .pin = options.pin_threads}),
        stream(threads, options.device),
        pool(model.cache_layout(), cache, options.device),
        runner(model, pool, stream, runner_options(options)) {}

  static RunnerOptions runner_options(const ModelBenchmarkOptions& options) {
    RunnerOptions runner{.precision = options.precision, .deterministic = options.deterministic};
    if (options.workspace_bytes > 0) {
      runner.workspace_bytes = static_cast<size_t>(options.workspace_bytes);
    }
    return runner;
  }

  ThreadPool threads;
  Stream stream;
  CachePool pool;
  Runner runner;
};

struct Case {
  BenchRow row;
  int64_t prompt = 0, generate = 0;  // tokens of each sequence
  Lane* lane = nullptr;
  double warm_up_seconds = 0;
};

class ModelBenchmark {
 public:
  ModelBenchmark(const Model& model, const ModelBenchmarkOptions& options,
                 const BenchProgressFunction& progress)
      : model_(model), options_(options), progress_(progress) {
    make_cases();
    make_lanes();
    std::mt19937_64 engine(options.seed);
    std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(model.vocab_size() - 1));
    tokens_.resize(static_cast<size_t>(longest_ * most_sequences_));
    for (int32_t& id : tokens_) id = token(engine);
  }

  std::vector<BenchRow> run() {
    const auto num_cases = static_cast<int64_t>(cases_.size());
    total_ = num_cases * (2 + options_.repetitions);
    for (Case& each : cases_) {
      report(each, "warm-up");
      run_once(each, /*warm_up=*/true);
    }
    for (Case& each : cases_) {
      report(each, "profile");
      profile(each);
    }
    for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
      for (Case& each : cases_) {
        report(each, "");
        each.row.seconds.push_back(run_once(each));
      }
    }
    std::vector<BenchRow> rows;
    for (Case& each : cases_) rows.push_back(std::move(each.row));
    return rows;
  }

 private:
  void make_cases() {
    for (const int threads : options_.threads) {
      for (const int64_t depth : options_.depths) {
        for (const int64_t prompt : options_.prompts) {
          for (const int64_t batch : options_.prompt_batches) {
            add_case(fmt::format("pp{}", prompt), "prefill", prompt, 0, batch, threads, depth);
          }
        }
        for (const int64_t generate : options_.generates) {
          for (const int64_t batch : options_.batches) {
            add_case(fmt::format("tg{}", generate), "decode", 0, generate, batch, threads, depth);
          }
        }
      }
      for (const BenchJob& job : options_.jobs) {
        add_case(fmt::format("job{}+{}", job.prompt, job.generate), "job", job.prompt, job.generate,
                 job.sequences, threads, 0);
      }
    }
    if (cases_.empty())
      throw UsageError("nothing to measure: --prompt, --generate and --jobs are empty");
  }

  void add_case(std::string test, const char* phase, int64_t prompt, int64_t generate,
                int64_t batch, int threads, int64_t depth) {
    const int64_t each = prompt + generate;
    if (each == 0) return;
    if (each + depth > model_.max_positions()) {
      throw UsageError("{} at depth {}: the model's context is {} tokens", test, depth,
                       model_.max_positions());
    }
    Case item;
    item.prompt = prompt;
    item.generate = generate;
    item.row.test = std::move(test);
    item.row.phase = phase;
    item.row.tokens = each * batch;
    item.row.batch = batch;
    item.row.depth = depth;
    item.row.threads = threads;
    longest_ = std::max(longest_, each + depth);
    most_sequences_ = std::max(most_sequences_, batch);
    cases_.push_back(std::move(item));
  }

  void make_lanes() {
    const CacheOptions cache = benchmark_cache(options_, longest_, most_sequences_);
    for (Case& each : cases_) {
      const int wanted = each.row.threads;
      auto known = std::find_if(lanes_.begin(), lanes_.end(),
                                [&](const auto& lane) { return lane.first == wanted; });
      if (known == lanes_.end()) {
        lanes_.emplace_back(wanted, std::make_unique<Lane>(model_, wanted, cache, options_));
        known = lanes_.end() - 1;
      }
      each.lane = known->second.get();
      each.row.threads = each.lane->threads.num_threads();
    }
  }

  std::span<const int32_t> tokens(int64_t sequence, int64_t begin, int64_t count) const {
    return std::span(tokens_).subspan(static_cast<size_t>(sequence * longest_ + begin),
                                      static_cast<size_t>(count));
  }

  static void step(Lane& lane, const StepPlan& plan) {
    const StepResult result = lane.runner.run(plan, {.wants_logits = false});
    BRAID_CHECK(result.status == StepStatus::kDone, "no room in a cache made for the rows");
  }

  // Tokens [begin, begin + count) of every sequence, as many at a time as a step takes.
  void prefill(Lane& lane, std::vector<SequenceState>& sequences, int64_t begin,
               int64_t count) const {
    const auto num = static_cast<int64_t>(sequences.size());
    int64_t share = std::max<int64_t>(1, options_.batch_tokens / num);
    const int64_t alignment = model_.prefill_alignment();
    if (share > alignment) share = share / alignment * alignment;
    for (int64_t done = 0; done < count; done += share) {
      const int64_t now = std::min(share, count - done);
      StepPlan plan;
      for (int64_t s = 0; s < num; ++s) {
        plan.sequences.push_back({&sequences[s], tokens(s, begin + done, now),
                                  done + now == count ? WantedLogits::kLast : WantedLogits::kNone});
      }
      step(lane, plan);
    }
  }

  void decode(Lane& lane, std::vector<SequenceState>& sequences, int64_t begin,
              int64_t count) const {
    StepPlan plan;
    for (int64_t done = 0; done < count; ++done) {
      plan.sequences.clear();
      for (size_t s = 0; s < sequences.size(); ++s) {
        plan.sequences.push_back(
            {&sequences[s], tokens(static_cast<int64_t>(s), begin + done, 1), WantedLogits::kLast});
      }
      step(lane, plan);
    }
  }

  // Seconds of the measured part.
  double run_once(Case& item, bool warm_up = false, Profiler* profiler = nullptr) {
    Lane& lane = *item.lane;
    std::vector<SequenceState> sequences;
    for (int64_t s = 0; s < item.row.batch; ++s) sequences.emplace_back(lane.pool);
    const int64_t depth = item.row.depth;
    if (depth > 0) prefill(lane, sequences, 0, depth);
    const int64_t steps = warm_up ? std::min(item.generate, kWarmUpSteps) : item.generate;
    lane.stream.set_profiler(profiler);
    const auto begin = Clock::now();
    if (item.prompt > 0) prefill(lane, sequences, depth, item.prompt);
    if (steps > 0) decode(lane, sequences, depth + item.prompt, steps);
    lane.stream.synchronize();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    lane.stream.set_profiler(nullptr);
    if (warm_up) {
      item.warm_up_seconds = seconds * static_cast<double>(item.prompt + item.generate) /
                             static_cast<double>(item.prompt + steps);
    }
    ++done_;
    return seconds;
  }

  void profile(Case& item) {
    Profiler profiler(/*keeps_events=*/options_.on_profile != nullptr);
    run_once(item, false, &profiler);
    profiler.collect();
    if (options_.on_profile) options_.on_profile(profiler);
    item.row.work = profiler.total();
    item.row.work.seconds = profiler.step_seconds();
    item.row.work.calls = profiler.num_steps();
    item.row.ops = op_results(profiler);
    item.row.profile_cost = profiler.device_cost();
  }

  void report(const Case& item, const char* what) {
    if (!progress_) return;
    const auto num_cases = static_cast<int64_t>(cases_.size());
    double left = -1;
    if (done_ >= num_cases) {
      left = 0;
      for (int64_t i = 0; i < num_cases; ++i) {
        // Runs of case i that are still to come.
        const int64_t had = done_ / num_cases + (i < done_ % num_cases ? 1 : 0);
        left += static_cast<double>(2 + options_.repetitions - had) * cases_[i].warm_up_seconds;
      }
    }
    progress_({done_, total_, left, item.row.key() + (*what == '\0' ? "" : " ") + what});
  }

  const Model& model_;
  const ModelBenchmarkOptions& options_;
  const BenchProgressFunction& progress_;
  std::vector<Case> cases_;
  std::vector<std::pair<int, std::unique_ptr<Lane>>> lanes_;
  std::vector<int32_t> tokens_;  // [sequences, longest]
  int64_t longest_ = 0;
  int64_t most_sequences_ = 1;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

}  // namespace

int64_t longest_sequence(const ModelBenchmarkOptions& options) {
  int64_t longest = 1;
  for (const auto* counts : {&options.prompts, &options.generates}) {
    for (const int64_t each : *counts) {
      for (const int64_t depth : options.depths) {
        if (each > 0) longest = std::max(longest, each + depth);
      }
    }
  }
  for (const BenchJob& job : options.jobs) longest = std::max(longest, job.prompt + job.generate);
  return longest;
}

int64_t most_sequences(const ModelBenchmarkOptions& options) {
  int64_t most = 1;
  for (const auto* counts : {&options.batches, &options.prompt_batches}) {
    for (const int64_t each : *counts) most = std::max(most, each);
  }
  for (const BenchJob& job : options.jobs) most = std::max(most, job.sequences);
  return most;
}

CacheOptions benchmark_cache(const ModelBenchmarkOptions& options, int64_t longest,
                             int64_t sequences) {
  return {.kv_dtype = options.kv_dtype,
          .dynamic_kv_scales = options.dynamic_kv_scales,
          .max_tokens = longest * sequences,
          .max_sequences = sequences,
          .max_sequence_tokens = longest,
          .max_step_tokens = std::max(options.batch_tokens, sequences)};
}

std::vector<BenchRow> run_model_benchmark(const Model& model, const ModelBenchmarkOptions& options,
                                          const BenchProgressFunction& progress) {
  return ModelBenchmark(model, options, progress).run();
}

std::vector<Ceilings> find_ceilings(const std::vector<int>& threads, bool measure_again,
                                    const CeilingCache& cache) {
  std::vector<Ceilings> all;
  for (const int wanted : threads) {
    ThreadPool pool({.num_threads = wanted});
    const int count = pool.num_threads();
    if (std::any_of(all.begin(), all.end(), [&](const Ceilings& c) { return c.threads == count; }))
      continue;
    if (const auto known = cache.find(count); known && !measure_again) {
      all.push_back(*known);
      continue;
    }
    all.push_back(measure_ceilings(pool));
    try {
      cache.put(all.back());
    } catch (const Error& error) {
      spdlog::warn("{}; they are measured again next time", error.what());
    }
  }
  return all;
}

}  // namespace braid

// Speed of the gated delta rule at the shapes of Qwen3-Next-80B (16 key heads, 32 value heads of
// 128): decoding (GB/s of state read and written, many sequences so that no state stays in cache)
// beside what the machine copies, and rows of one sequence in either form (GFLOP/s of the
// recurrent arithmetic, 6·key_dim·value_dim a value head and token, so that the forms compare).

#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/conv/causal_conv.h"
#include "ops/gated_delta/gated_delta.h"
#include "tensor/tensor.h"

namespace {

using namespace braid;

constexpr int64_t kKeyHeads = 16, kValueHeads = 32, kDim = 128, kLogged = 8;
constexpr int64_t kChannels = (2 * kKeyHeads + kValueHeads) * kDim;
constexpr double kStateBytes = 4.0 * kValueHeads * kDim * kDim;

Tensor random_tensor(const Shape& shape, float deviation, uint32_t seed) {
  Tensor tensor(DType::kF32, shape);
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  for (float& x : tensor.view().span<float>()) x = normal(engine);
  return tensor;
}

struct Bench {
  Bench(int64_t slots, int64_t tokens, int threads)
      : pool({.num_threads = threads}),
        stream(pool),
        workspace(size_t{1} << 30),
        mixed(random_tensor({tokens, kChannels}, 1, 1)),
        convolved(random_tensor({tokens, kChannels}, 1, 2)),
        weight(random_tensor({kChannels, 4}, 1, 3)),
        gates(random_tensor({tokens, 2 * kValueHeads}, 1, 4)),
        rate(random_tensor({kValueHeads}, 0.01f, 5)),
        bias(random_tensor({kValueHeads}, 1, 6)),
        out(DType::kF32, {tokens, kValueHeads, kDim}),
        states(random_tensor({slots, kValueHeads, kDim, kDim}, 0.1f, 7)),
        conv_rows(random_tensor({slots, 3 + kLogged, kChannels}, 1, 8)),
        logged_keys(random_tensor({slots, kLogged, kKeyHeads, kDim}, 0.1f, 9)),
        logged_updates(random_tensor({slots, kLogged, kValueHeads, kDim}, 0.1f, 10)),
        logged_decays(DType::kF32, {slots, kLogged, kValueHeads}) {
    for (float& x : rate.view().span<float>()) x = -std::abs(x);
    for (float& x : logged_decays.view().span<float>()) x = 0.9f;
    const TensorView x = convolved.view();
    constexpr int64_t kKeys = kKeyHeads * kDim, kValues = kValueHeads * kDim;
    inputs = {x.columns(0, kKeys).reshape({tokens, kKeyHeads, kDim}),
              x.columns(kKeys, kKeys).reshape({tokens, kKeyHeads, kDim}),
              x.columns(2 * kKeys, kValues).reshape({tokens, kValueHeads, kDim}),
              gates.view().columns(0, kValueHeads),
              gates.view().columns(kValueHeads, kValueHeads),
              rate,
              bias};
    layer = {states, conv_rows, logged_keys, logged_updates, logged_decays};
  }
  void rule(const std::vector<RecurrentRows>& sequences, GatedDeltaForm form) {
    gated_delta(stream, workspace, inputs, layer, sequences, {.form = form}, out);
  }

  ThreadPool pool;
  Stream stream;
  Workspace workspace;
  Tensor mixed, convolved, weight, gates, rate, bias, out;
  Tensor states, conv_rows, logged_keys, logged_updates, logged_decays;
  GatedDeltaInputs inputs;
  RecurrentLayer layer;
};

// 128 MiB of state.
constexpr int64_t kManySlots = 64;

std::vector<RecurrentRows> one_row_each(int32_t rows, bool logged, int32_t replayed) {
  std::vector<RecurrentRows> sequences;
  for (int32_t slot = 0; slot < kManySlots; ++slot) {
    sequences.push_back({.first_row = slot * rows,
                         .num_rows = rows,
                         .slot = slot,
                         .num_replayed = replayed,
                         .logged = logged});
  }
  return sequences;
}

void report_bytes(benchmark::State& state, double bytes) {
  state.counters["GB/s"] = benchmark::Counter(bytes / 1e9 * static_cast<double>(state.iterations()),
                                              benchmark::Counter::kIsRate);
}

// As many bytes, read and written in place, in pieces like those of a value head.
void BM_UpdateMemory(benchmark::State& state) {
  Bench bench(kManySlots, kManySlots, static_cast<int>(state.range(0)));
  float* data = bench.states.data<float>();
  for (auto _ : state) {
    bench.pool.parallel_for(kManySlots * kKeyHeads, 1, [&](int64_t begin, int64_t, int) {
      float* p = data + begin * 2 * kDim * kDim;
      for (int64_t i = 0; i < 2 * kDim * kDim; ++i) p[i] *= 1.0001f;
    });
  }
  report_bytes(state, 2 * kStateBytes * kManySlots);
}

void BM_Decode(benchmark::State& state) {
  Bench bench(kManySlots, kManySlots, static_cast<int>(state.range(0)));
  const auto sequences = one_row_each(1, false, 0);
  for (auto _ : state) bench.rule(sequences, GatedDeltaForm::kAuto);
  report_bytes(state, 2 * kStateBytes * kManySlots);
}

// Verification of 4 tokens, after one of which 3 were accepted.
void BM_LoggedDecode(benchmark::State& state) {
  Bench bench(kManySlots, 4 * kManySlots, static_cast<int>(state.range(0)));
  const auto sequences = one_row_each(4, true, 3);
  for (auto _ : state) bench.rule(sequences, GatedDeltaForm::kAuto);
  report_bytes(state, 2 * kStateBytes * kManySlots);
}

void BM_Rows(benchmark::State& state, GatedDeltaForm form) {
  const int64_t rows = state.range(0);
  Bench bench(1, rows, static_cast<int>(state.range(1)));
  const std::vector<RecurrentRows> sequences = {{.num_rows = rows}};
  for (auto _ : state) bench.rule(sequences, form);
  state.counters["GFLOP/s"] = benchmark::Counter(
      6e-9 * kDim * kDim * kValueHeads * static_cast<double>(rows * state.iterations()),
      benchmark::Counter::kIsRate);
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(rows * state.iterations()),
                                                  benchmark::Counter::kIsRate);
}
void BM_Recurrent(benchmark::State& state) { BM_Rows(state, GatedDeltaForm::kRecurrent); }
void BM_Chunks(benchmark::State& state) { BM_Rows(state, GatedDeltaForm::kChunks); }

void BM_Conv(benchmark::State& state) {
  const int64_t rows = state.range(0);
  Bench bench(1, rows, static_cast<int>(state.range(1)));
  const std::vector<RecurrentRows> sequences = {{.num_rows = rows}};
  for (auto _ : state) {
    causal_conv_silu(bench.stream, bench.mixed, bench.weight, bench.layer, sequences,
                     bench.convolved);
  }
  report_bytes(state, 8.0 * kChannels * static_cast<double>(rows));
}

void threads(benchmark::internal::Benchmark* b) { b->Arg(1)->Arg(2)->UseRealTime(); }
BENCHMARK(BM_UpdateMemory)->Apply(threads);
BENCHMARK(BM_Decode)->Apply(threads);
BENCHMARK(BM_LoggedDecode)->Apply(threads);

void rows(benchmark::internal::Benchmark* b) {
  for (const int64_t n : {4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 1024}) b->Args({n, 1});
  b->Args({1024, 2})->UseRealTime();
}
BENCHMARK(BM_Recurrent)->Apply(rows);
BENCHMARK(BM_Chunks)->Apply(rows);
BENCHMARK(BM_Conv)->Args({1, 1})->Args({512, 1})->UseRealTime();

}  // namespace

BENCHMARK_MAIN();

// How long draw_tokens() and scan_logits() take on a CUDA device: many calls in a row, none waited
// for. Usage: cuda_draw_timings [vocab]

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "ops/logits/draw_tokens.h"
#include "ops/logits/scan_logits.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"
#include "tensor/workspace.h"

namespace {

using namespace braid;

template <typename Run>
double microseconds(Stream& stream, const Run& run) {
  constexpr int kCalls = 200;
  double best = 1e30;
  for (int round = 0; round < 3; ++round) {
    stream.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) run();
    stream.synchronize();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count() / kCalls);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t vocab = argc > 1 ? std::atoll(argv[1]) : 262144;
  const Device device{DeviceKind::kCuda, 0};
  ThreadPool pool({.num_threads = 1});
  Stream stream(pool, device);
  Workspace workspace(size_t{1} << 30, device);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  constexpr int64_t kMostRows = 64;
  Tensor logits(DType::kF32, {kMostRows, vocab}, device);
  std::vector<float> host(static_cast<size_t>(kMostRows * vocab));
  for (float& x : host) x = normal(random);
  cuda::copy_to_device(static_cast<std::byte*>(logits.view().raw()), host.data(),
                       host.size() * sizeof(float), 0);
  struct Case {
    const char* name;
    DrawRule rule;
  };
  std::vector<LogitEdit> edits;
  for (int32_t i = 0; i < 500; ++i) edits.push_back({.token = 7 * i, .output_count = 1});
  const Case cases[] = {
      {"greedy", {.temperature = 0}},
      {"temperature", {}},
      {"min_p 0.05", {.min_p = 0.05f}},
      {"top_k 64", {.top_k = 64}},
      {"top_p 0.95", {.top_p = 0.95f}},
      {"top_k 64, top_p 0.95", {.top_k = 64, .top_p = 0.95f}},
      {"the same, 500 penalties, 5 logprobs",
       {.top_k = 64, .top_p = 0.95f, .presence_penalty = 0.5f, .num_logprobs = 5, .edits = edits}},
  };
  fmt::print("vocabulary of {}; us a call, by rows\n{:36}", vocab, "");
  const int64_t counts[] = {1, 8, 32, 64};
  for (const int64_t rows : counts) fmt::print("{:>8}", rows);
  fmt::print("\n{:36}", "scan_logits");
  for (const int64_t rows : counts) {
    Tensor summaries(DType::kI32, {rows, 2}, device);
    fmt::print("{:8.1f}", microseconds(stream, [&] {
                 const Workspace::Scope scope(workspace);
                 scan_logits(stream, workspace, logits.view().rows(0, rows), summaries.view());
               }));
  }
  for (const Case& c : cases) {
    fmt::print("\n{:36}", c.name);
    for (const int64_t rows : counts) {
      std::vector<DrawRule> rules(static_cast<size_t>(rows), c.rule);
      for (int64_t i = 0; i < rows; ++i) {
        rules[static_cast<size_t>(i)].row = i;
        rules[static_cast<size_t>(i)].key = {.seed = 1, .request = static_cast<uint64_t>(i)};
      }
      Tensor drawn(DType::kI32, {rows, drawn_columns(5)}, device);
      fmt::print("{:8.1f}", microseconds(stream, [&] {
                   const Workspace::Scope scope(workspace);
                   for (DrawRule& rule : rules) ++rule.key.position;
                   draw_tokens(stream, workspace, logits.view(), rules, drawn.view());
                 }));
    }
  }
  fmt::print("\n");
}

// Steps after the first ones take no memory from the heap. The whole test binary counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "runner/fake_model.h"
#include "runner/runner.h"

namespace {

std::atomic<int64_t> num_allocations{0};

void* counted_allocation(size_t size, size_t alignment) {
  ++num_allocations;
  size = (size + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, size == 0 ? alignment : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) {
  return counted_allocation(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return counted_allocation(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace braid {
namespace {

TEST(RunnerAllocation, WarmStepsTakeNoMemory) {
  constexpr int kSequences = 5;
  ThreadPool threads({.num_threads = 2});
  Stream stream(threads);
  testing::FakeModel model;
  CachePool pool(model.cache_layout(), {.page_tokens = 8,
                                        .max_tokens = 4096,
                                        .max_sequences = kSequences,
                                        .max_step_tokens = 64,
                                        .max_logged_tokens = 12});
  Runner runner(model, pool, stream, {.workspace_bytes = size_t{1} << 24});
  const std::vector<int32_t> tokens(64, 3);
  std::vector<SequenceState> sequences;
  for (int i = 0; i < kSequences; ++i) sequences.emplace_back(pool);
  StepPlan chunk;
  StepPlan decode;
  for (SequenceState& sequence : sequences) {
    chunk.sequences.push_back({&sequence, std::span(tokens).first(12), WantedLogits::kAll});
    decode.sequences.push_back({&sequence, std::span(tokens).first(1), WantedLogits::kLast});
  }
  runner.run(chunk);  // the largest step

  const int64_t before = num_allocations;
  const void* logits = nullptr;
  for (int step = 0; step < 300; ++step) {
    const StepResult result = runner.run(decode);
    ASSERT_EQ(result.status, StepStatus::kDone);
    ASSERT_TRUE(logits == nullptr || logits == result.logits.raw()) << "the workspace has moved";
    logits = result.logits.raw();
  }
  for (SequenceStep& step : chunk.sequences) step.commit = false;
  runner.run(chunk);
  for (SequenceState& sequence : sequences) sequence.commit(5);
  EXPECT_EQ(num_allocations - before, 0);

  // The counter does count.
  const std::vector<int32_t> more(100, 1);
  EXPECT_GT(num_allocations - before, 0);
}

}  // namespace
}  // namespace braid

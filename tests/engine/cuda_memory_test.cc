#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "engine/draft_plan.h"
#include "engine/memory_plan.h"
#include "engine/tiny_model.h"
#include "tensor/buffer.h"
#include "tensor/cuda/device_memory.h"

namespace braid {
namespace {

constexpr Device kGpu{DeviceKind::kCuda, 0};
// The driver takes its memory in such pieces, for several small allocations together.
constexpr int64_t kDriverPiece = int64_t{2} << 20;

class CudaMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "no CUDA device here";
  }
  // In use on the device, by whomever.
  static int64_t in_use() {
    const cuda::DeviceRoom room = cuda::device_room(kGpu.index);
    return room.total_bytes - room.free_bytes;
  }
};

TEST_F(CudaMemoryTest, TheDriverTakesNoMoreThanFootprints) {
  std::printf("a context takes %lld bytes\n", static_cast<long long>(in_use()));
  for (const int64_t size : {1000, 100 << 10, 1000 << 10, (1 << 20) + 5, 3 << 20, 17 << 20}) {
    const int64_t before = in_use(), counted = cuda::memory_use(kGpu.index).bytes;
    constexpr int kCount = 20;
    std::vector<Buffer> buffers;
    for (int i = 0; i < kCount; ++i) buffers.emplace_back(static_cast<size_t>(size), kGpu);
    const int64_t taken = in_use() - before;
    const int64_t count = cuda::memory_use(kGpu.index).bytes - counted;
    std::printf("%lld x %d: driver %lld, counted %lld\n", static_cast<long long>(size), kCount,
                static_cast<long long>(taken), static_cast<long long>(count));
    EXPECT_EQ(count, kCount * cuda::footprint(size));
    EXPECT_LE(taken, count + kDriverPiece);
    buffers.clear();
    EXPECT_EQ(cuda::memory_use(kGpu.index).bytes, counted);
  }
}

TEST_F(CudaMemoryTest, PeaksAreKept) {
  cuda::reset_peak(kGpu.index);
  const int64_t before = cuda::memory_use(kGpu.index).bytes;
  { const Buffer large(50 << 20, kGpu); }
  const Buffer small(3 << 20, kGpu);
  const cuda::MemoryUse use = cuda::memory_use(kGpu.index);
  EXPECT_EQ(use.bytes, before + cuda::footprint(3 << 20));
  EXPECT_EQ(use.peak_bytes, before + cuda::footprint(50 << 20));
}

class CudaPlanTest : public CudaMemoryTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(CudaPlanTest, HoldsWhatARunTakes) {
  const std::string path = GetParam()[0] == '/' ? GetParam() : testing::model_path(GetParam());
  for (const ActivationPrecision precision :
       {ActivationPrecision::kBF16, ActivationPrecision::kF32}) {
    constexpr int64_t kSequences = 5;
    const LoadedModel described =
        LoadedModel::load(path, {.with_tokenizer = false, .device = kGpu, .read_ahead = false});
    EngineOptions options = testing::exact_options();
    options.precision = precision;
    options.kv_dtype = DType::kBF16;
    options.max_sequences = kSequences;
    const Model& model = described.model();
    const CacheOptions cache = cache_options(model, options, options.max_context);
    const auto memory = device_memory(kGpu, 1);
    MemoryPlan plan;
    memory->add_fixed(plan);
    const int64_t context = plan.total();
    add_model(plan, "", model, {described.placed().bytes, described.placed().beside}, cache,
              {.tokens = cache.max_step_tokens,
               .logits_rows = kSequences,
               .edited_rows = kSequences,
               .sequences = kSequences,
               .precision = precision},
              *memory);

    cuda::reset_peak(kGpu.index);
    const int64_t used = in_use(), counted = cuda::memory_use(kGpu.index).bytes;
    const LoadedModel loaded = LoadedModel::load(path, {.with_tokenizer = false, .device = kGpu});
    EXPECT_EQ(loaded.placed().bytes, described.placed().bytes);
    EXPECT_EQ(cuda::memory_use(kGpu.index).bytes - counted, loaded.placed().bytes);
    options.workspace_bytes = plan.bytes(MemoryKind::kWorkspace);
    Engine engine(loaded, options);
    // Of different lengths: fewer and fewer sequences share a step.
    for (int64_t i = 0; i < kSequences; ++i) {
      engine.submit(testing::greedy_request(std::vector<int32_t>(100 + 20 * i, 5), 10 + 10 * i));
    }
    while (!engine.idle()) {
      for (const TokenEvent& event : engine.step()) EXPECT_EQ(event.error, "");
    }
    const int64_t peak = cuda::memory_use(kGpu.index).peak_bytes - counted;
    const int64_t driver = in_use() - used;
    const auto high_water = static_cast<int64_t>(engine.runner().workspace().high_water_bytes());
    std::printf(
        "%s: planned %lld + %lld for the context; allocated %lld, driver %lld; workspace "
        "%lld of %lld\n",
        GetParam(), static_cast<long long>(plan.total() - context), static_cast<long long>(context),
        static_cast<long long>(peak), static_cast<long long>(driver),
        static_cast<long long>(high_water), static_cast<long long>(options.workspace_bytes));
    EXPECT_LE(peak, plan.total() - context);
    // The context was there before; code of kernels is loaded as they are first used, and the plan
    // has room for this much of it beside a context.
    constexpr int64_t kCodeBytes = int64_t{64} << 20;
    EXPECT_LE(driver, plan.total() - context + kCodeBytes);
    EXPECT_LE(high_water, options.workspace_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaPlanTest,
                         ::testing::Values("gemma3", "gemma3_w4a16", "gemma4_e2b", "gemma4_moe",
                                           "qwen3_next", "qwen3_next_w8a8",
                                           BRAID_DEMO_MODEL_FOLDER "/gemma4",
                                           BRAID_DEMO_MODEL_FOLDER "/qwen3next"));

struct Drafting {
  const char* model;
  const char* drafter;  // a path within the test data goes behind the colon
  int64_t sequences;
};

class CudaDraftPlanTest : public CudaMemoryTest, public ::testing::WithParamInterface<Drafting> {};

// With penalties, so that any logit may change.
TEST_P(CudaDraftPlanTest, HoldsWhatADrafterTakes) {
  const Drafting& drafting = GetParam();
  DrafterChoice choice = parse_drafter(drafting.drafter);
  if (!choice.path.empty()) choice.path = testing::model_path(choice.path).string();
  const std::string path = testing::model_path(drafting.model).string();
  const LoadedModel described =
      LoadedModel::load(path, {.with_tokenizer = false, .device = kGpu, .read_ahead = false});
  EngineOptions options = testing::exact_options();
  options.precision = ActivationPrecision::kBF16;
  options.kv_dtype = DType::kBF16;
  options.max_sequences = drafting.sequences;
  options.speculation.max_drafts = 3;
  options.speculation.adaptive = false;
  const Model& model = described.model();
  const DraftPlan draft(choice, described);
  CacheOptions cache = cache_options(model, options, options.max_context);
  cache.max_logged_tokens = 4;
  const auto memory = device_memory(kGpu, 1);
  const int64_t rows = drafting.sequences * 4;
  const StepSize step{.tokens = cache.max_step_tokens,
                      .logits_rows = rows,
                      .edited_rows = rows,
                      .sequences = drafting.sequences,
                      .precision = options.precision};
  MemoryPlan plan;
  add_model(plan, "", model, {described.placed().bytes, described.placed().beside}, cache, step,
            *memory);
  const int64_t without = plan.total();
  draft.add(plan, drafter_sizes(options, cache), *memory);

  cuda::reset_peak(kGpu.index);
  const int64_t counted = cuda::memory_use(kGpu.index).bytes;
  const LoadedModel loaded = LoadedModel::load(path, {.with_tokenizer = false, .device = kGpu});
  options.speculation.drafter = load_drafter(choice, loaded);
  options.workspace_bytes = memory->workspace_bytes(model, step);
  {
    Engine engine(loaded, options);
    for (int64_t i = 0; i < drafting.sequences; ++i) {
      GenerationRequest request =
          testing::greedy_request(std::vector<int32_t>(60 + 20 * (i % 5), 5), 20 + i);
      request.sampling.repetition_penalty = 1.1f;
      engine.submit(std::move(request));
    }
    while (!engine.idle()) {
      for (const TokenEvent& event : engine.step()) EXPECT_EQ(event.error, "");
    }
    EXPECT_GT(engine.speculation_stats()->num_drafted(), 0);
  }
  const int64_t peak = cuda::memory_use(kGpu.index).peak_bytes - counted;
  std::printf("%s, %s: planned %lld, of which the drafter %lld; allocated %lld\n", drafting.model,
              drafting.drafter, static_cast<long long>(plan.total()),
              static_cast<long long>(plan.total() - without), static_cast<long long>(peak));
  EXPECT_LE(peak, plan.total());
  EXPECT_GT(peak, without / 4);
}

INSTANTIATE_TEST_SUITE_P(
    Drafters, CudaDraftPlanTest,
    ::testing::Values(Drafting{"qwen3_next", "mtp", 3}, Drafting{"qwen3_next", "mtp", 24},
                      Drafting{"gemma3", "model:gemma3", 5},
                      Drafting{"gemma4_dense", "assistant:gemma4_assistant", 6},
                      Drafting{"gemma4_e2b", "assistant:gemma4_assistant_ordered", 6}));

}  // namespace
}  // namespace braid

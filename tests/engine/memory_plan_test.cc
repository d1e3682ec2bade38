#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "engine/tiny_model.h"
#include "runner/runner.h"
#include "support/fresh_seed.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/cuda/stream_memory.h"

namespace braid {
namespace {

int64_t scratch_and_alignment(const Model& model, int threads) {
  return device_memory({}, threads)->workspace_bytes(model, {});
}

// Beside the constant part (scratch of the threads), a bound is at most so many times what a step
// takes: wide enough for the differences of precision and format, too narrow for a forgotten
// dimension.
constexpr double kLargestRatio = 2.5;

class WorkspaceBoundTest : public ::testing::TestWithParam<std::string> {};

TEST_P(WorkspaceBoundTest, HoldsWhatAStepTakes) {
  testing::FreshRandom random;
  const std::filesystem::path path(GetParam());
  const LoadedModel loaded = LoadedModel::load(path.string(), {.with_tokenizer = false});
  const Model& model = loaded.model();
  for (const ActivationPrecision precision :
       {ActivationPrecision::kF32, ActivationPrecision::kBF16, ActivationPrecision::kInt8}) {
    for (const DType kv : {DType::kF32, DType::kBF16, DType::kI8}) {
      const int num_threads = static_cast<int>(random.integer(1, 3));
      const int64_t tokens = random.coin(0.2) ? random.integer(1, 4) : random.integer(64, 300);
      const bool all = random.coin();
      const bool hidden = random.coin();
      const CacheOptions cache{.kv_dtype = kv,
                               .max_tokens = 2 * tokens,
                               .max_sequence_tokens = 2 * tokens,
                               .max_step_tokens = tokens};
      MemoryPlan plan;
      const auto device = device_memory({}, num_threads);
      const StepSize step{
          .tokens = tokens, .logits_rows = all ? tokens : 1, .precision = precision};
      add_model(plan, "", model, model.load_report().weight_bytes, cache, step, *device);

      ThreadPool threads({.num_threads = num_threads});
      Stream stream(threads);
      CachePool pool(model.cache_layout(), cache);
      const int64_t bound = plan.bytes(MemoryKind::kWorkspace);
      Runner runner(model, pool, stream,
                    {.precision = precision, .workspace_bytes = static_cast<size_t>(bound)});
      SequenceState sequence(pool);
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < tokens; ++i) {
        ids.push_back(static_cast<int32_t>(random.integer(0, model.vocab_size() - 1)));
      }
      for (int round = 0; round < 2; ++round) {
        StepPlan step_plan;
        step_plan.sequences.push_back(
            {&sequence, ids, all ? WantedLogits::kAll : WantedLogits::kLast});
        runner.run(step_plan, {.wants_hidden = hidden});
      }
      const auto taken = static_cast<double>(runner.workspace().high_water_bytes());
      EXPECT_LE(taken, bound);
      EXPECT_LE(bound - scratch_and_alignment(model, num_threads), kLargestRatio * taken)
          << tokens << " tokens, precision " << static_cast<int>(precision);
      EXPECT_EQ(plan.bytes(MemoryKind::kCache), pool.size_bytes());
      EXPECT_LE(pool.used_bytes(), pool.size_bytes());
    }
  }
}

std::vector<std::string> all_models() {
  std::vector<std::string> models;
  for (const char* name :
       {"gemma3", "gemma3_w4a16", "gemma4_dense", "gemma4_e2b", "gemma4_e4b", "gemma4_moe",
        "gemma4_moe_w4a16", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_split", "qwen3_next",
        "qwen3_next_w8a8", "gguf/gemma4_e4b_q8_0.gguf", "gguf/qwen3_5_moe_mtp_q8_0.gguf"}) {
    models.push_back(testing::model_path(name).string());
  }
  for (const char* name : {"gemma4", "gemma4-dense", "qwen3next"}) {
    models.push_back(std::string(BRAID_DEMO_MODEL_FOLDER) + "/" + name);
  }
  return models;
}

INSTANTIATE_TEST_SUITE_P(Models, WorkspaceBoundTest, ::testing::ValuesIn(all_models()),
                         [](const auto& info) {
                           std::string name = std::filesystem::path(info.param).filename().string();
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name + "_" + std::to_string(info.index);
                         });

TEST(LargestFitting, FindsTheLast) {
  testing::FreshRandom random;
  for (int round = 0; round < 100; ++round) {
    const int64_t low = random.integer(0, 100), high = low + random.integer(0, 1000);
    const int64_t limit = random.integer(-10, 1200);
    const auto found = largest_fitting(low, high, [&](int64_t n) { return n <= limit; });
    if (limit < low) {
      EXPECT_EQ(found, std::nullopt);
    } else {
      EXPECT_EQ(found, std::min(limit, high));
    }
  }
  EXPECT_EQ(largest_fitting(5, 4, [](int64_t) { return true; }), std::nullopt);
}

TEST(MemoryPlan, AddsUpByKind) {
  MemoryPlan plan;
  plan.add(MemoryKind::kWeights, "a", 10);
  plan.add(MemoryKind::kCache, "b", 3);
  plan.add(MemoryKind::kCache, "nothing", 0);
  plan.add(MemoryKind::kCache, "c", 4);
  EXPECT_EQ(plan.items.size(), 3u);
  EXPECT_EQ(plan.bytes(MemoryKind::kCache), 7);
  EXPECT_EQ(plan.bytes(MemoryKind::kWorkspace), 0);
  EXPECT_EQ(plan.total(), 17);
}

TEST(MemoryPlan, KnowsEveryTensorOfACache) {
  testing::FreshRandom random;
  for (const char* name : {"gemma3", "gemma4_e2b", "gemma4_moe", "qwen3_next"}) {
    const LoadedModel loaded =
        LoadedModel::load(testing::model_path(name).string(), {.with_tokenizer = false});
    for (const DType kv : {DType::kF32, DType::kBF16, DType::kI8}) {
      const int64_t sequences = random.integer(1, 5), tokens = random.integer(1, 3000);
      const CachePlan plan =
          plan_cache(loaded.model().cache_layout(), {.kv_dtype = kv,
                                                     .max_tokens = sequences * tokens,
                                                     .max_sequences = sequences,
                                                     .max_sequence_tokens = tokens,
                                                     .max_step_tokens = random.integer(8, 512),
                                                     .max_logged_tokens = random.integer(0, 8)});
      const CacheAllocations all = cache_allocations(plan);
      int64_t sum = 0;
      for (const auto* allocations : {&all.full, &all.window, &all.recurrent}) {
        for (const int64_t bytes : *allocations) sum += bytes;
      }
      EXPECT_EQ(sum, plan.size_bytes()) << name;
      EXPECT_EQ(all.recurrent.empty(), plan.recurrent_groups.empty()) << name;
    }
  }
}

// On a device the plan is made of allocations as they count there, without the device.
TEST(MemoryPlan, OfADeviceAddsUpFootprints) {
  testing::FreshRandom random;
  const Device device{DeviceKind::kCuda, 0};
  for (const char* name : {"gemma3_w4a16", "gemma4_moe", "qwen3_next_w8a8"}) {
    SCOPED_TRACE(name);
    const LoadedModel described =
        LoadedModel::load(testing::model_path(name).string(),
                          {.with_tokenizer = false, .device = device, .read_ahead = false});
    const Model& model = described.model();
    EXPECT_EQ(described.device(), device);
    // Rows are filled up, small tensors widened to float32 and all of them to whole pieces.
    const LoadReport& report = model.load_report();
    EXPECT_GE(described.placed().bytes, report.weight_bytes);
    EXPECT_LE(described.placed().bytes,
              4 * report.weight_bytes + report.num_consumed * cuda::footprint(2 << 20));
    const auto memory = device_memory(device, 1);
    const int64_t sequences = random.integer(1, 6), context = random.integer(300, 4000);
    const CacheOptions cache{.kv_dtype = DType::kBF16,
                             .max_tokens = sequences * context,
                             .max_sequences = sequences,
                             .max_sequence_tokens = context,
                             .max_step_tokens = 256};
    const StepSize step{.tokens = 256,
                        .logits_rows = sequences,
                        .sequences = sequences,
                        .precision = ActivationPrecision::kBF16};
    MemoryPlan plan;
    add_model(plan, "", model, {described.placed().bytes, described.placed().beside}, cache, step,
              *memory);
    const CachePlan caches = plan_cache(model.cache_layout(), cache);
    EXPECT_GE(plan.bytes(MemoryKind::kCache), caches.size_bytes());
    EXPECT_EQ(plan.bytes(MemoryKind::kWorkspace), memory->workspace_bytes(model, step));
    EXPECT_GE(plan.bytes(MemoryKind::kWorkspace),
              device_memory({}, 1)->workspace_bytes(model, {.tokens = 256, .logits_rows = 1}) -
                  scratch_and_alignment(model, 1));
    EXPECT_GE(plan.bytes(MemoryKind::kFixed), cuda::kStreamTableBytes + cuda::kStreamLibraryBytes);
    // What loading takes beside the weights counts where it is more than all that follows.
    MemoryPlan loading;
    const int64_t later = plan.total() - described.placed().bytes;
    add_model(loading, "", model, {described.placed().bytes, later + 12345}, cache, step, *memory);
    EXPECT_EQ(loading.total(), plan.total() + 12345);
  }
}

TEST(MemoryPlan, AsFewLayersAsNeedBeStayOnTheHost) {
  testing::FreshRandom random;
  for (int round = 0; round < 100; ++round) {
    PlacementCount count;
    const int64_t layers = random.integer(1, 20);
    const int64_t shared = random.integer(0, 1 << 30);
    count.bytes = shared;
    for (int64_t i = 0; i < layers; ++i) {
      const int64_t block = random.integer(1 << 20, 1 << 28);
      count.layers.push_back({.bytes = cuda::footprint(block), .block = block});
      count.bytes += count.layers.back().bytes;
    }
    EXPECT_TRUE(plan_offload(count, count.bytes)->layers_on_host.empty());
    EXPECT_EQ(plan_offload(count, shared), std::nullopt);
    const int64_t room = shared + random.integer(0, count.bytes - shared - 1);
    const auto weights = plan_offload(count, room);
    if (!weights) {
      // All layers on the host, and even their slots do not fit.
      int64_t largest = 0;
      for (const PlacementCount::Layer& layer : count.layers) {
        largest = std::max(largest, layer.block);
      }
      EXPECT_GT(shared + LayerStreamer::kSlots * cuda::footprint(largest), room);
      continue;
    }
    EXPECT_LE(weights->bytes, room);
    ASSERT_FALSE(weights->layers_on_host.empty());
    int64_t bytes = count.bytes, host = 0, largest = 0, before = -1;
    for (const int64_t layer : weights->layers_on_host) {
      ASSERT_GT(layer, before);
      ASSERT_LT(layer, layers);
      before = layer;
      bytes -= count.layers[static_cast<size_t>(layer)].bytes;
      host += count.layers[static_cast<size_t>(layer)].block;
      largest = std::max(largest, count.layers[static_cast<size_t>(layer)].block);
    }
    EXPECT_EQ(weights->bytes, bytes + LayerStreamer::kSlots * cuda::footprint(largest));
    EXPECT_EQ(weights->host_bytes, host);
  }
}

TEST(MemoryPlan, FootprintsAreWholePieces) {
  testing::FreshRandom random;
  EXPECT_EQ(cuda::footprint(0), 0);
  EXPECT_EQ(cuda::footprint(1), 512);
  EXPECT_EQ(cuda::footprint(1 << 20), 2 << 20);
  for (int round = 0; round < 100; ++round) {
    const int64_t bytes = random.integer(1, int64_t{1} << random.integer(1, 40));
    EXPECT_GE(cuda::footprint(bytes), bytes);
    EXPECT_LT(cuda::footprint(bytes), bytes + (2 << 20));
    EXPECT_EQ(cuda::footprint(cuda::footprint(bytes)), cuda::footprint(bytes));
  }
}

// A limit that is too small is an error of the step, not more memory.
TEST(MemoryPlan, TheEngineKeepsToItsWorkspace) {
  const LoadedModel loaded =
      LoadedModel::load(testing::model_path("gemma3").string(), {.with_tokenizer = false});
  EngineOptions options = testing::exact_options();
  options.workspace_bytes = 64 << 10;
  Engine engine(loaded, options);
  const testing::Reply reply =
      testing::run_alone(engine, testing::greedy_request(std::vector<int32_t>(200, 5), 2));
  EXPECT_EQ(reply.finish, FinishReason::kError);
  EXPECT_LE(engine.runner().workspace().high_water_bytes(), size_t{64} << 10);
  // Enough: the same request works.
  options.workspace_bytes = device_memory({}, 1)->workspace_bytes(
      loaded.model(), {.tokens = options.batch_tokens, .logits_rows = 1});
  Engine other(loaded, options);
  EXPECT_EQ(testing::run_alone(other, testing::greedy_request(std::vector<int32_t>(200, 5), 2))
                .tokens.size(),
            2u);
}

}  // namespace
}  // namespace braid

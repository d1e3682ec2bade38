#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/tiny_model.h"
#include "tensor/cuda/device_memory.h"
#include "tensor/profiler.h"

namespace braid {
namespace {

constexpr Device kGpu{DeviceKind::kCuda, 0};

struct Profiled {
  Profiler profiler{/*keeps_events=*/true};
  std::vector<std::vector<int32_t>> tokens;
};

// Two requests at a time, in float32.
void run(const std::string& model, Device device, Profiled& out) {
  const LoadedModel loaded = LoadedModel::load(testing::model_path(model).string(),
                                               {.with_tokenizer = false, .device = device});
  EngineOptions options = testing::exact_options();
  options.max_sequences = 2;
  options.profiler = &out.profiler;
  Engine engine(loaded, options);
  std::map<RequestId, std::vector<int32_t>> tokens;
  const int64_t vocabulary = loaded.model().vocab_size();
  for (const int64_t length : {40, 71}) {
    std::vector<int32_t> prompt;
    for (int64_t i = 0; i < length; ++i) {
      prompt.push_back(static_cast<int32_t>((5 + 7919 * i) % vocabulary));
    }
    engine.submit(testing::greedy_request(std::move(prompt), 6));
  }
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) {
      ASSERT_EQ(event.error, "");
      if (event.token) tokens[event.request].push_back(event.token->token);
    }
  }
  out.profiler.collect();
  for (auto& [id, ids] : tokens) out.tokens.push_back(ids);
}

class CudaProfileTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "no CUDA device here";
  }
};

TEST_P(CudaProfileTest, OpsOfStepsAreTimedByTheDevice) {
  Profiled host, device;
  run(GetParam(), {}, host);
  run(GetParam(), kGpu, device);
  const Profiler& profiler = device.profiler;
  EXPECT_EQ(device.tokens, host.tokens);
  EXPECT_EQ(profiler.num_steps(), host.profiler.num_steps());
  EXPECT_FALSE(host.profiler.device_cost().has_value());

  // The same layers with the same matrices and caches, whatever the ops are called.
  const auto by_layer = [](const Profiler& from) {
    std::map<std::string, std::pair<double, double>> sums;  // weights, states
    for (const Profiler::Entry& entry : from.entries()) {
      auto& [weights, states] = sums[std::string(entry.layer)];
      weights += entry.weight_bytes;
      states += entry.state_bytes;
    }
    return sums;
  };
  const auto expected = by_layer(host.profiler), found = by_layer(profiler);
  for (const auto& [layer, bytes] : expected) {
    ASSERT_TRUE(found.contains(layer)) << layer;
    std::printf("%s %s: weights %.0f and %.0f, states %.0f and %.0f\n", GetParam(), layer.c_str(),
                bytes.first, found.at(layer).first, bytes.second, found.at(layer).second);
    // How many experts are read is an estimate on the device.
    const double most = layer == "moe" ? 2 : 1.1, least = layer == "moe" ? 0.5 : 0.9;
    EXPECT_LE(found.at(layer).first, most * bytes.first) << layer;
    EXPECT_GE(found.at(layer).first, least * bytes.first) << layer;
    EXPECT_NEAR(found.at(layer).second, bytes.second, 0.1 * bytes.second) << layer;
  }

  // Each is timed, one after the other, within the steps.
  const Profiler::Entry total = profiler.total();
  for (const Profiler::Entry& entry : profiler.entries()) {
    EXPECT_GT(entry.seconds, 0) << entry.op;
  }
  EXPECT_LE(total.seconds, profiler.step_seconds());
  const auto cost = profiler.device_cost();
  ASSERT_TRUE(cost.has_value());
  EXPECT_GT(cost->mark_seconds, 0);
  EXPECT_LE(profiler.step_seconds(), cost->host_seconds);
  EXPECT_GE(cost->marks, 2 * total.calls + 2 * profiler.num_steps());
  std::printf(
      "%s: %lld ops %.3f ms of steps of %.3f ms, by the host's clock %.3f ms, a mark %.2f us\n",
      GetParam(), static_cast<long long>(total.calls), 1e3 * total.seconds,
      1e3 * profiler.step_seconds(), 1e3 * cost->host_seconds, 1e6 * cost->mark_seconds);

  // A track of the device's with as many ops as the host's.
  ASSERT_EQ(profiler.num_dropped_events(), 0);
  std::map<std::string, int64_t> queued, done;
  Profiler::Clock::time_point last{};
  for (const Profiler::Event& event : profiler.events()) {
    if (event.category == "op") ++(event.on_device ? done : queued)[std::string(event.name)];
    if (event.category != "op" || !event.on_device) continue;
    EXPECT_GE(event.begin, last) << event.name;
    EXPECT_GE(event.end, event.begin) << event.name;
    last = event.end;
  }
  EXPECT_EQ(done, queued);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaProfileTest,
                         ::testing::Values("gemma3", "gemma4_moe", "qwen3_next"));

}  // namespace
}  // namespace braid

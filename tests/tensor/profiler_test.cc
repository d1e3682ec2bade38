#include "tensor/profiler.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace braid {
namespace {

class ProfilerTest : public ::testing::Test {
 protected:
  const Profiler::Entry* find(std::string_view op, std::string_view layer) const {
    for (const Profiler::Entry& entry : profiler_.entries()) {
      if (entry.op == op && entry.layer == layer) return &entry;
    }
    return nullptr;
  }

  ThreadPool threads_{{.num_threads = 1}};
  Stream stream_{threads_};
  Profiler profiler_{/*keeps_events=*/true};
};

TEST_F(ProfilerTest, WorkIsNotAskedForWithoutOne) {
  const OpScope op(stream_, "linear", [] {
    ADD_FAILURE() << "asked";
    return OpWork{};
  });
  const LayerScope layer(stream_, "mlp");
  const StepScope step(stream_);
}

TEST_F(ProfilerTest, AddsUpByOpOperandAndLayer) {
  stream_.set_profiler(&profiler_);
  const auto run = [&](std::string_view operand, double bytes) {
    const OpScope op(stream_, "linear", operand, [&] {
      return OpWork{.weight_bytes = bytes,
                    .state_bytes = 1,
                    .activation_bytes = 2,
                    .operations = 10,
                    .arithmetic = Arithmetic::kInt8};
    });
  };
  {
    const StepScope step(stream_);
    run("q4_0", 100);
    const LayerScope layer(stream_, "mlp");
    run("q4_0", 7);
    run("q4_0", 8);
    {
      const LayerScope inner(stream_, "moe");
      run("q4_0", 9);
    }
    run("f32", 11);
  }
  ASSERT_EQ(profiler_.entries().size(), 4u);
  const Profiler::Entry* mlp = find("linear", "mlp");
  ASSERT_NE(mlp, nullptr);
  EXPECT_EQ(mlp->calls, 2);
  EXPECT_EQ(mlp->weight_bytes, 15);
  EXPECT_EQ(mlp->bytes(), 15 + 2 * (1 + 2));
  EXPECT_EQ(mlp->operations[static_cast<int>(Arithmetic::kInt8)], 20);
  EXPECT_EQ(mlp->operations[static_cast<int>(Arithmetic::kF32)], 0);
  ASSERT_NE(find("linear", "moe"), nullptr);
  EXPECT_EQ(find("linear", "moe")->weight_bytes, 9);
  const Profiler::Entry total = profiler_.total();
  EXPECT_EQ(total.calls, 5);
  EXPECT_EQ(total.weight_bytes, 135);
  EXPECT_EQ(total.all_operations(), 50);
  EXPECT_EQ(profiler_.num_steps(), 1);
  // But for the roundings of five sums, should the clock be too coarse to see what is between ops.
  EXPECT_GE(profiler_.step_seconds() * (1 + 0x1p-49), total.seconds);
}

TEST_F(ProfilerTest, AnOpInsideAnotherIsPartOfIt) {
  stream_.set_profiler(&profiler_);
  {
    const OpScope outer(stream_, "outer", [] { return OpWork{.weight_bytes = 5}; });
    const OpScope inner(stream_, "inner", [] { return OpWork{.weight_bytes = 3}; });
  }
  {
    const OpScope after(stream_, "after", [] { return OpWork{}; });
  }
  ASSERT_EQ(profiler_.entries().size(), 2u);
  EXPECT_EQ(profiler_.entries()[0].op, "outer");
  EXPECT_EQ(profiler_.entries()[0].weight_bytes, 5);
  EXPECT_EQ(profiler_.entries()[1].op, "after");
}

TEST_F(ProfilerTest, EventsNestAndResetForgets) {
  stream_.set_profiler(&profiler_);
  {
    const StepScope step(stream_);
    const LayerScope layer(stream_, "mlp");
    const OpScope op(stream_, "linear", "q4_0", [] { return OpWork{.weight_bytes = 64}; });
  }
  ASSERT_EQ(profiler_.events().size(), 3u);  // inner ones end first
  const auto& events = profiler_.events();
  EXPECT_EQ(events[0].name, "linear");
  EXPECT_EQ(events[1].name, "mlp");
  EXPECT_EQ(events[2].category, "step");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_LE(events[i + 1].begin, events[i].begin);
    EXPECT_LE(events[i].end, events[i + 1].end);
  }
  const std::string trace = chrome_trace(events, 3);
  EXPECT_NE(trace.find("\"name\":\"linear q4_0\",\"cat\":\"op\",\"ph\":\"X\""), std::string::npos);
  EXPECT_NE(trace.find("\"args\":{\"bytes\":64,\"operations\":0}"), std::string::npos);
  EXPECT_NE(trace.find("\"dropped_events\":3"), std::string::npos);

  profiler_.reset();
  EXPECT_TRUE(profiler_.entries().empty());
  EXPECT_TRUE(profiler_.events().empty());
  EXPECT_EQ(profiler_.num_steps(), 0);
}

// A device that takes a second for each mark, and for ops what spend() says; while something is
// held its clock runs on by a hundred seconds.
class FakeTimeline : public DeviceTimeline {
 public:
  struct Device {
    int seconds = 0;
    int num_holds = 0, num_releases = 0, num_reads = 0, num_clears = 0;
    int64_t num_ops = 0;
    void spend(int more) { seconds += more; }
  };
  explicit FakeTimeline(Device& device) : device_(device) {}

  int mark() override {
    marks_.push_back(Clock::time_point(std::chrono::seconds(++device_.seconds)));
    return static_cast<int>(marks_.size()) - 1;
  }
  void hold() override {
    ++device_.num_holds;
    device_.spend(100);
  }
  void release() override { ++device_.num_releases; }
  std::vector<Clock::time_point> read() override {
    ++device_.num_reads;
    return std::exchange(marks_, {});
  }
  void clear() noexcept override {
    ++device_.num_clears;
    marks_.clear();
  }
  int64_t num_ops() const override { return device_.num_ops; }
  double mark_seconds() const override { return 1; }

 private:
  Device& device_;
  std::vector<Clock::time_point> marks_;
};

class DeviceProfilerTest : public ProfilerTest {
 protected:
  DeviceProfilerTest() {
    profiler_.watch(std::make_unique<FakeTimeline>(device_));
    stream_.set_profiler(&profiler_);
  }
  void run(std::string_view name, int seconds) {
    const OpScope op(stream_, name, "q4_0", [] { return OpWork{.weight_bytes = 64}; });
    device_.spend(seconds);
    ++device_.num_ops;
  }
  std::vector<Profiler::Event> on_device(std::string_view category) const {
    std::vector<Profiler::Event> found;
    for (const Profiler::Event& event : profiler_.events()) {
      if (event.on_device && event.category == category) found.push_back(event);
    }
    return found;
  }

  FakeTimeline::Device device_;
};

TEST_F(DeviceProfilerTest, TimesAreTheDevicesOwn) {
  {
    const StepScope step(stream_);
    device_.spend(7);
    const LayerScope layer(stream_, "mlp");
    run("linear", 10);
    run("linear", 20);
    run("add", 5);
    EXPECT_TRUE(profiler_.entries().empty()) << "the device was waited for within a step";
  }
  // Two marks an op, of which one falls within it; the step's own two, of which one is within.
  EXPECT_EQ(find("linear", "mlp")->seconds, 10 + 20 + 2);
  EXPECT_EQ(find("linear", "mlp")->calls, 2);
  EXPECT_EQ(find("add", "mlp")->seconds, 5 + 1);
  EXPECT_EQ(profiler_.total().weight_bytes, 3 * 64);
  EXPECT_EQ(profiler_.num_steps(), 1);
  EXPECT_EQ(profiler_.step_seconds(), 7 + 10 + 20 + 5 + 2 * 3 + 1);
  EXPECT_EQ(device_.num_holds, 1);
  EXPECT_EQ(device_.num_reads, 1);
  const auto cost = profiler_.device_cost();
  ASSERT_TRUE(cost.has_value());
  EXPECT_EQ(cost->marks, 2 * 3 + 2);
  EXPECT_EQ(cost->mark_seconds, 1);

  const auto ops = on_device("op"), layers = on_device("layer"), steps = on_device("step");
  ASSERT_EQ(ops.size(), 3u);
  ASSERT_EQ(layers.size(), 1u);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(layers[0].begin, ops.front().begin);
  EXPECT_EQ(layers[0].end, ops.back().end);
  EXPECT_LT(steps[0].begin, layers[0].begin);
  EXPECT_GT(steps[0].end, layers[0].end);
  const std::string trace = chrome_trace(profiler_.events(), 0);
  EXPECT_NE(trace.find("\"args\":{\"name\":\"device\"}"), std::string::npos);
  EXPECT_NE(trace.find("\"cat\":\"op\",\"ph\":\"X\",\"pid\":1,\"tid\":1"), std::string::npos);
  EXPECT_NE(trace.find("\"cat\":\"op\",\"ph\":\"X\",\"pid\":1,\"tid\":2"), std::string::npos);
}

TEST_F(DeviceProfilerTest, WhatIsHeldIsNoTimeOfTheStep) {
  constexpr int kOps = 1000;
  {
    const StepScope step(stream_);
    for (int i = 0; i < kOps; ++i) run("linear", 3);
  }
  const auto held = static_cast<int>(on_device("hold").size());
  EXPECT_GT(held, 10) << "the queue of a device is not endless";
  EXPECT_LT(held, kOps / 10);
  EXPECT_EQ(device_.num_holds, held + 1);  // and one before the step
  EXPECT_EQ(profiler_.total().seconds, kOps * (3 + 1));
  // Ops, a mark in front of each, one in front of each hold, and the last.
  EXPECT_EQ(profiler_.step_seconds(), kOps * (3 + 2) + held + 1);
}

TEST_F(DeviceProfilerTest, OpsOutsideOfStepsAreCollectedWhenAsked) {
  run("draw", 4);
  EXPECT_TRUE(profiler_.entries().empty());
  profiler_.collect();
  EXPECT_EQ(find("draw", "between layers")->seconds, 4 + 1);
  EXPECT_EQ(profiler_.step_seconds(), 4 + 1);
  EXPECT_EQ(profiler_.num_steps(), 0);
  // Not without end.
  const int reads = device_.num_reads;
  for (int i = 0; i < 10000; ++i) run("draw", 1);
  EXPECT_GE(device_.num_reads, reads + 2);
  profiler_.collect();
  EXPECT_EQ(find("draw", "between layers")->calls, 10001);
  {
    const StepScope step(stream_, /*counts=*/false);
    run("draw", 9);
  }
  EXPECT_EQ(profiler_.num_steps(), 0);
  EXPECT_EQ(find("draw", "between layers")->seconds, 5 + 10000 * 2 + 10);
  EXPECT_EQ(profiler_.step_seconds(), 5 + 10000 * 2 + 10 + 2);
}

TEST_F(DeviceProfilerTest, AnOpThatQueuesNothingIsNone) {
  {
    const StepScope step(stream_);
    {
      const OpScope declined(stream_, "gated_mlps", [] { return OpWork{.weight_bytes = 640}; });
    }
    run("linear", 3);
  }
  EXPECT_EQ(find("gated_mlps", "between layers"), nullptr);
  EXPECT_EQ(profiler_.total().weight_bytes, 64);
  EXPECT_EQ(profiler_.total().calls, 1);
}

TEST(ExpectedExperts, AreThoseOfEvenChoices) {
  EXPECT_EQ(expected_experts(0, 8), 0);
  EXPECT_NEAR(expected_experts(1, 8), 1, 1e-12);
  EXPECT_NEAR(expected_experts(2, 8), 2 - 1.0 / 8, 1e-12);
  EXPECT_NEAR(expected_experts(100000, 8), 8, 1e-9);
}

TEST_F(DeviceProfilerTest, AStepThatFailsLeavesNothing) {
  const auto fail = [&] {
    const StepScope step(stream_);
    run("linear", 3);
    const OpScope op(stream_, "add", [] { return OpWork{}; });
    throw std::runtime_error("no");
  };
  EXPECT_THROW(fail(), std::runtime_error);
  EXPECT_EQ(device_.num_clears, 1) << "nothing may be held any more";
  profiler_.collect();
  EXPECT_TRUE(profiler_.entries().empty());
  EXPECT_EQ(profiler_.step_seconds(), 0);
  {
    const StepScope step(stream_);
    run("linear", 3);
  }
  EXPECT_EQ(profiler_.total().calls, 1);
  EXPECT_EQ(profiler_.num_steps(), 1);
}

}  // namespace
}  // namespace braid

#include "tensor/profiler.h"

#include <gtest/gtest.h>

#include <string>

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
  EXPECT_GE(profiler_.step_seconds(), total.seconds);
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

}  // namespace
}  // namespace braid

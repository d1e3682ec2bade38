#include "tensor/profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace braid {
namespace {

double seconds_between(Profiler::Clock::time_point begin, Profiler::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

std::string_view arithmetic_name(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::kF32:
      return "f32";
    case Arithmetic::kBF16:
      return "bf16";
    case Arithmetic::kInt8:
      return "int8";
  }
  return "?";
}

double Profiler::Entry::all_operations() const {
  double sum = 0;
  for (const double count : operations) sum += count;
  return sum;
}

void Profiler::Entry::add(const Entry& other) {
  calls += other.calls;
  seconds += other.seconds;
  weight_bytes += other.weight_bytes;
  state_bytes += other.state_bytes;
  activation_bytes += other.activation_bytes;
  for (int i = 0; i < kNumArithmetics; ++i) operations[i] += other.operations[i];
}

Profiler::Entry Profiler::total() const {
  Entry sum;
  for (const Entry& entry : entries_) sum.add(entry);
  return sum;
}

void Profiler::reset() {
  entries_.clear();
  events_.clear();
  num_dropped_events_ = 0;
  num_steps_ = 0;
  step_seconds_ = 0;
}

void Profiler::finish_op(std::string_view op, std::string_view operand, const OpWork& work,
                         Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  --open_ops_;
  Entry entry{.op = op,
              .operand = operand,
              .layer = layer_,
              .calls = 1,
              .seconds = seconds_between(begin, end),
              .weight_bytes = work.weight_bytes,
              .state_bytes = work.state_bytes,
              .activation_bytes = work.activation_bytes};
  entry.operations[static_cast<int>(work.arithmetic)] = work.operations;
  keep({op, operand, "op", begin, end, entry.bytes(), work.operations});
  for (Entry& known : entries_) {
    if (known.op == op && known.operand == operand && known.layer == layer_) {
      known.add(entry);
      return;
    }
  }
  entries_.push_back(entry);
}

void Profiler::keep(const Event& event) {
  if (!keeps_events_) return;
  if (events_.size() == kMaxEvents) {
    ++num_dropped_events_;
    return;
  }
  events_.push_back(event);
}

std::string chrome_trace(std::span<const Profiler::Event> events, int64_t num_dropped) {
  // Names are the program's own words: nothing needs escaping.
  std::string json = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  auto out = std::back_inserter(json);
  Profiler::Clock::time_point start = Profiler::Clock::time_point::max();
  for (const Profiler::Event& event : events) start = std::min(start, event.begin);
  const auto microseconds = [](Profiler::Clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  };
  bool first = true;
  for (const Profiler::Event& event : events) {
    fmt::format_to(out,
                   "{}\n{{\"name\":\"{}{}{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":1,",
                   std::exchange(first, false) ? "" : ",", event.name,
                   event.operand.empty() ? "" : " ", event.operand, event.category);
    fmt::format_to(out, "\"ts\":{:.3f},\"dur\":{:.3f}", microseconds(event.begin - start),
                   microseconds(event.end - event.begin));
    if (event.bytes > 0 || event.operations > 0) {
      fmt::format_to(out, ",\"args\":{{\"bytes\":{:.0f},\"operations\":{:.0f}}}", event.bytes,
                     event.operations);
    }
    json += '}';
  }
  fmt::format_to(out, "\n],\"otherData\":{{\"dropped_events\":{}}}}}\n", num_dropped);
  return json;
}

void LayerScope::enter(std::string_view kind) {
  outer_ = std::exchange(profiler_->layer_, kind);
  begin_ = Profiler::Clock::now();
}

void LayerScope::leave() {
  profiler_->keep({profiler_->layer_, {}, "layer", begin_, Profiler::Clock::now()});
  profiler_->layer_ = outer_;
}

void StepScope::leave() {
  const Profiler::Clock::time_point end = Profiler::Clock::now();
  ++profiler_->num_steps_;
  profiler_->step_seconds_ += seconds_between(begin_, end);
  profiler_->keep({"step", {}, "step", begin_, end});
}

}  // namespace braid

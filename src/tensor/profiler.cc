#include "tensor/profiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "tensor/cuda/event_timeline.h"

namespace braid {
namespace {

// Ops that are in the queue before the first of them begins. Few enough for the queue of a device
// (of about a thousand kernels), many enough for the host to be ahead.
constexpr int kOpsHeld = 64;
// Marks outside of steps that are not read yet.
constexpr size_t kMostPendingOps = 4096;

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

std::optional<Profiler::DeviceCost> Profiler::device_cost() const {
  if (timeline_ == nullptr) return std::nullopt;
  return DeviceCost{num_marks_, timeline_->mark_seconds(), host_seconds_};
}

void Profiler::reset() {
  forget_pending();
  entries_.clear();
  events_.clear();
  num_dropped_events_ = 0;
  num_steps_ = 0;
  step_seconds_ = 0;
  num_marks_ = 0;
  host_seconds_ = 0;
}

void Profiler::watch(std::unique_ptr<DeviceTimeline> timeline) {
  collect();
  timeline_ = std::move(timeline);
}

void Profiler::use_timeline_of(const Stream& stream) {
  if (timeline_ == nullptr && !stream.is_cpu()) watch(cuda::make_event_timeline(stream.cuda()));
}

int Profiler::mark() {
  ++num_marks_;
  return timeline_->mark();
}

void Profiler::hold() {
  const int begin = mark();
  timeline_->hold();
  pending_steps_.back().held.emplace_back(begin, mark());
  ops_held_ = 0;
}

int Profiler::begin_op(const Stream& stream) {
  use_timeline_of(stream);
  int begin = -1;
  if (timeline_ != nullptr) {
    if (open_steps_ > 0 && ops_held_ == kOpsHeld) hold();
    ++ops_held_;
    ops_before_ = timeline_->num_ops();
    begin = mark();
  }
  ++open_ops_;
  return begin;
}

void Profiler::finish_op(std::string_view op, std::string_view operand, const OpWork& work,
                         Clock::time_point begin, int begin_mark) {
  --open_ops_;
  if (std::uncaught_exceptions() > 0) return;
  if (timeline_ != nullptr && timeline_->num_ops() == ops_before_) return;
  const Clock::time_point end = Clock::now();
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
  const bool outside = open_steps_ == 0;
  if (timeline_ == nullptr) {
    if (outside) step_seconds_ += entry.seconds;
    return add(entry);
  }
  pending_ops_.push_back({entry, begin_mark, mark(), outside});
  if (outside && open_layers_ == 0 && pending_ops_.size() >= kMostPendingOps) collect();
}

void Profiler::add(const Entry& entry) {
  for (Entry& known : entries_) {
    if (known.op == entry.op && known.operand == entry.operand && known.layer == entry.layer) {
      known.add(entry);
      return;
    }
  }
  entries_.push_back(entry);
}

void Profiler::begin_step(const Stream& stream) {
  use_timeline_of(stream);
  BRAID_CHECK(open_steps_ == 0, "a step inside another");
  if (timeline_ != nullptr) {
    timeline_->hold();
    ops_held_ = 0;
    pending_steps_.push_back({.begin = mark()});
  }
  ++open_steps_;
}

void Profiler::finish_step(Clock::time_point begin, bool counts) {
  --open_steps_;
  if (std::uncaught_exceptions() > 0) return forget_pending();
  if (timeline_ != nullptr) {
    pending_steps_.back().counts = counts;
    pending_steps_.back().end = mark();
    collect();
  }
  const Clock::time_point end = Clock::now();
  if (timeline_ == nullptr) {
    num_steps_ += counts ? 1 : 0;
    step_seconds_ += seconds_between(begin, end);
  } else {
    host_seconds_ += seconds_between(begin, end);
  }
  keep({"step", {}, "step", begin, end});
}

void Profiler::collect() {
  if (timeline_ == nullptr) return;
  const std::vector<Clock::time_point> times = timeline_->read();
  const auto at = [&](int mark) { return times[static_cast<size_t>(mark)]; };
  for (PendingOp& op : pending_ops_) {
    Entry& entry = op.entry;
    entry.seconds = seconds_between(at(op.begin), at(op.end));
    keep({entry.op, entry.operand, "op", at(op.begin), at(op.end), entry.bytes(),
          entry.all_operations(), /*on_device=*/true});
    if (op.outside) step_seconds_ += entry.seconds;
    add(entry);
  }
  for (const PendingLayer& layer : pending_layers_) {
    if (layer.first_op >= layer.end_op) continue;
    keep({.name = layer.name,
          .category = "layer",
          .begin = at(pending_ops_[layer.first_op].begin),
          .end = at(pending_ops_[layer.end_op - 1].end),
          .on_device = true});
  }
  for (const PendingStep& step : pending_steps_) {
    double seconds = seconds_between(at(step.begin), at(step.end));
    for (const auto& [begin, end] : step.held) seconds -= seconds_between(at(begin), at(end));
    step_seconds_ += seconds;
    num_steps_ += step.counts ? 1 : 0;
    keep({.name = "step",
          .category = "step",
          .begin = at(step.begin),
          .end = at(step.end),
          .on_device = true});
    for (const auto& [begin, end] : step.held) {
      keep({.name = "waits for the host",
            .category = "hold",
            .begin = at(begin),
            .end = at(end),
            .on_device = true});
    }
  }
  forget_pending();
}

void Profiler::forget_pending() noexcept {
  pending_ops_.clear();
  pending_layers_.clear();
  pending_steps_.clear();
  if (timeline_ != nullptr) timeline_->clear();
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
  const bool two_tracks =
      std::any_of(events.begin(), events.end(), [](const auto& event) { return event.on_device; });
  for (int track = 1; two_tracks && track <= 2; ++track) {
    fmt::format_to(out,
                   "{}\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{},"
                   "\"args\":{{\"name\":\"{}\"}}}}",
                   std::exchange(first, false) ? "" : ",", track,
                   track == 1 ? "host, which queues" : "device");
  }
  for (const Profiler::Event& event : events) {
    fmt::format_to(
        out, "{}\n{{\"name\":\"{}{}{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},",
        std::exchange(first, false) ? "" : ",", event.name, event.operand.empty() ? "" : " ",
        event.operand, event.category, event.on_device ? 2 : 1);
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
  ++profiler_->open_layers_;
  first_op_ = profiler_->pending_ops_.size();
  begin_ = Profiler::Clock::now();
}

void LayerScope::leave() {
  --profiler_->open_layers_;
  profiler_->keep({profiler_->layer_, {}, "layer", begin_, Profiler::Clock::now()});
  if (profiler_->keeps_events_ && profiler_->timeline_ != nullptr) {
    profiler_->pending_layers_.push_back(
        {profiler_->layer_, first_op_, profiler_->pending_ops_.size()});
  }
  profiler_->layer_ = outer_;
}

}  // namespace braid

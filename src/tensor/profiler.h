#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/device_timeline.h"
#include "tensor/stream.h"

namespace braid {

// In which numbers an op multiplies.
enum class Arithmetic : uint8_t { kF32, kBF16, kInt8 };
inline constexpr int kNumArithmetics = 3;
// "f32", "bf16", "int8"
std::string_view arithmetic_name(Arithmetic arithmetic);

// What an op has to move and compute, however it does so: each operand once.
struct OpWork {
  double weight_bytes = 0;      // parameters read: of experts, only those that got tokens
  double state_bytes = 0;       // keys, values and recurrent states read and written
  double activation_bytes = 0;  // inputs and outputs of the op; small ones never leave the caches
  double operations = 0;        // multiplications and additions
  Arithmetic arithmetic = Arithmetic::kF32;
};

// Of so many experts, how many are chosen by at least one of `pairs` choices, on average, if all
// are as likely: for ops of a device, which leave the choices there.
inline double expected_experts(int64_t pairs, int64_t experts) {
  const double n = static_cast<double>(experts);
  return n - n * std::pow(1 - 1 / n, static_cast<double>(pairs));
}

// Adds up time and work of the ops of a stream, by op and by kind of layer. On the CPU time is that
// of the host's clock. On a CUDA device it is the device's: marks in the stream around each op,
// read at the end of the step, with the ops of a step waiting on the device for each other only
// (and not for the host that queues them). Used by the thread that uses the stream, of one stream.
// Names are kept as views: give literals, or texts that outlive the profiler.
class Profiler {
 public:
  using Clock = DeviceTimeline::Clock;

  // Calls of one op, on one kind of operand, in one kind of layer.
  struct Entry {
    std::string_view op;       // "linear"
    std::string_view operand;  // "q4_0", or nothing
    std::string_view layer;    // "attention"
    int64_t calls = 0;
    double seconds = 0;
    double weight_bytes = 0;
    double state_bytes = 0;
    double activation_bytes = 0;
    std::array<double, kNumArithmetics> operations{};  // by Arithmetic

    double bytes() const { return weight_bytes + state_bytes + activation_bytes; }
    double all_operations() const;
    void add(const Entry& other);
  };

  // An op, a layer or a step, for a trace: as the device computed it, or as the host did or
  // queued it.
  struct Event {
    std::string_view name, operand, category;
    Clock::time_point begin, end;
    double bytes = 0;
    double operations = 0;
    bool on_device = false;
  };
  // Events of a trace; later ones are counted, not kept.
  static constexpr size_t kMaxEvents = size_t{1} << 20;

  explicit Profiler(bool keeps_events = false) : keeps_events_(keeps_events) {}

  // On a device: waits for the ops outside of steps. Before the rest is asked for.
  void collect();

  const std::vector<Entry>& entries() const { return entries_; }
  // The sum of all entries.
  Entry total() const;
  int64_t num_steps() const { return num_steps_; }
  // Ops and what lies between them, and ops outside of steps; on a device without the time that it
  // waited for the host.
  double step_seconds() const { return step_seconds_; }
  const std::vector<Event>& events() const { return events_; }
  int64_t num_dropped_events() const { return num_dropped_events_; }

  // What measuring on a device costs.
  struct DeviceCost {
    int64_t marks = 0;
    double mark_seconds = 0;  // each, about
    double host_seconds = 0;  // of the steps, by the host's clock
  };
  // Nothing on the CPU.
  std::optional<DeviceCost> device_cost() const;

  // Goes by this timeline from now on; ops make their stream's by themselves.
  void watch(std::unique_ptr<DeviceTimeline> timeline);
  // The host is about to wait for the device.
  void let_go() {
    if (timeline_ != nullptr) timeline_->release();
  }
  void reset();

 private:
  friend class OpScope;
  friend class LayerScope;
  friend class StepScope;

  // An op that the device may not have done yet, and its marks.
  struct PendingOp {
    Entry entry;
    int begin = 0, end = 0;
    bool outside = false;  // of steps
  };
  struct PendingLayer {
    std::string_view name;
    size_t first_op = 0, end_op = 0;  // of the pending ones
  };
  struct PendingStep {
    bool counts = true;
    int begin = 0, end = 0;
    std::vector<std::pair<int, int>> held;  // marks around what was held
  };

  // Marks of what begins; -1 on the CPU.
  int begin_op(const Stream& stream);
  void finish_op(std::string_view op, std::string_view operand, const OpWork& work,
                 Clock::time_point begin, int begin_mark);
  void begin_step(const Stream& stream);
  void finish_step(Clock::time_point begin, bool counts);
  void use_timeline_of(const Stream& stream);
  int mark();
  void hold();
  void add(const Entry& entry);
  void keep(const Event& event);
  void forget_pending() noexcept;

  bool keeps_events_;
  int open_ops_ = 0, open_layers_ = 0, open_steps_ = 0;
  std::string_view layer_ = kNoLayer;
  std::vector<Entry> entries_;
  std::vector<Event> events_;
  int64_t num_dropped_events_ = 0;
  int64_t num_steps_ = 0;
  double step_seconds_ = 0;

  std::unique_ptr<DeviceTimeline> timeline_;  // null on the CPU
  int64_t num_marks_ = 0;
  double host_seconds_ = 0;
  int ops_held_ = 0;
  int64_t ops_before_ = 0;  // of the device's, when the open one began
  std::vector<PendingOp> pending_ops_;
  std::vector<PendingLayer> pending_layers_;
  std::vector<PendingStep> pending_steps_;

  static constexpr std::string_view kNoLayer = "between layers";
};

// Events in Chrome's trace format (JSON; chrome://tracing, Perfetto).
std::string chrome_trace(std::span<const Profiler::Event> events, int64_t num_dropped = 0);

// The time of an op. `work` is called, and a clock read, only if the stream carries a profiler. An
// op that another one calls counts as part of it; one that fails, or leaves the work to other ops
// (on a device: queues nothing), not at all.
class OpScope {
 public:
  template <typename Work>
  OpScope(const Stream& stream, std::string_view op, std::string_view operand, const Work& work)
      : profiler_(stream.profiler()) {
    if (profiler_ == nullptr) return;
    if (profiler_->open_ops_ > 0) {
      profiler_ = nullptr;
      return;
    }
    op_ = op;
    operand_ = operand;
    work_ = work();
    mark_ = profiler_->begin_op(stream);
    begin_ = Profiler::Clock::now();
  }
  template <typename Work>
  OpScope(const Stream& stream, std::string_view op, const Work& work)
      : OpScope(stream, op, {}, work) {}
  ~OpScope() noexcept(false) {
    if (profiler_ != nullptr) profiler_->finish_op(op_, operand_, work_, begin_, mark_);
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  Profiler* profiler_;
  std::string_view op_, operand_;
  OpWork work_;
  int mark_ = -1;
  Profiler::Clock::time_point begin_;
};

// Ops inside belong to a layer of this kind; of nested ones, the innermost.
class LayerScope {
 public:
  LayerScope(const Stream& stream, std::string_view kind) : profiler_(stream.profiler()) {
    if (profiler_ != nullptr) enter(kind);
  }
  ~LayerScope() {
    if (profiler_ != nullptr) leave();
  }
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  void enter(std::string_view kind);
  void leave();

  Profiler* profiler_;
  std::string_view outer_;
  size_t first_op_ = 0;
  Profiler::Clock::time_point begin_;
};

// A forward pass, or (counts false) something of a step's beside one. On a device its end waits for
// all ops. Not nested.
class StepScope {
 public:
  explicit StepScope(const Stream& stream, bool counts = true)
      : profiler_(stream.profiler()), counts_(counts) {
    if (profiler_ == nullptr) return;
    profiler_->begin_step(stream);
    begin_ = Profiler::Clock::now();
  }
  ~StepScope() noexcept(false) {
    if (profiler_ != nullptr) profiler_->finish_step(begin_, counts_);
  }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  Profiler* profiler_;
  bool counts_;
  Profiler::Clock::time_point begin_;
};

}  // namespace braid

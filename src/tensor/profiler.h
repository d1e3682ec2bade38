#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// Adds up time and work of the ops of a stream, by op and by kind of layer. Used by the thread that
// uses the stream. Names are kept as views: give literals, or texts that outlive the profiler.
class Profiler {
 public:
  using Clock = std::chrono::steady_clock;

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

  // An op, a layer or a step, for a trace.
  struct Event {
    std::string_view name, operand, category;
    Clock::time_point begin, end;
    double bytes = 0;
    double operations = 0;
  };
  // Events of a trace; later ones are counted, not kept.
  static constexpr size_t kMaxEvents = size_t{1} << 20;

  explicit Profiler(bool keeps_events = false) : keeps_events_(keeps_events) {}

  const std::vector<Entry>& entries() const { return entries_; }
  // The sum of all entries.
  Entry total() const;
  int64_t num_steps() const { return num_steps_; }
  double step_seconds() const { return step_seconds_; }  // ops and what lies between them
  const std::vector<Event>& events() const { return events_; }
  int64_t num_dropped_events() const { return num_dropped_events_; }
  void reset();

 private:
  friend class OpScope;
  friend class LayerScope;
  friend class StepScope;

  void finish_op(std::string_view op, std::string_view operand, const OpWork& work,
                 Clock::time_point begin);
  void keep(const Event& event);

  bool keeps_events_;
  int open_ops_ = 0;
  std::string_view layer_ = kNoLayer;
  std::vector<Entry> entries_;
  std::vector<Event> events_;
  int64_t num_dropped_events_ = 0;
  int64_t num_steps_ = 0;
  double step_seconds_ = 0;

  static constexpr std::string_view kNoLayer = "between layers";
};

// Events in Chrome's trace format (JSON; chrome://tracing, Perfetto).
std::string chrome_trace(std::span<const Profiler::Event> events, int64_t num_dropped = 0);

// The time of an op; on a CUDA device, that of its kernels and of launching them, one op after the
// other. `work` is called, and the clock read, only if the stream carries a profiler.
// An op that another one calls counts as part of it.
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
    ++profiler_->open_ops_;
    stream_ = &stream;
    stream.synchronize();
    begin_ = Profiler::Clock::now();
  }
  template <typename Work>
  OpScope(const Stream& stream, std::string_view op, const Work& work)
      : OpScope(stream, op, {}, work) {}
  ~OpScope() noexcept(false) {
    if (profiler_ == nullptr) return;
    // Of an op that fails the error is already on its way.
    if (std::uncaught_exceptions() == 0) stream_->synchronize();
    profiler_->finish_op(op_, operand_, work_, begin_);
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  Profiler* profiler_;
  const Stream* stream_ = nullptr;
  std::string_view op_, operand_;
  OpWork work_;
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
  Profiler::Clock::time_point begin_;
};

// A forward pass.
class StepScope {
 public:
  explicit StepScope(const Stream& stream) : profiler_(stream.profiler()) {
    if (profiler_ != nullptr) begin_ = Profiler::Clock::now();
  }
  ~StepScope() {
    if (profiler_ != nullptr) leave();
  }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  void leave();

  Profiler* profiler_;
  Profiler::Clock::time_point begin_;
};

}  // namespace braid

#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmark/result.h"
#include "tensor/profiler.h"

namespace braid {

// --profile [FILE.json]: times of ops and kinds of layers on standard error and, with FILE, a
// trace.
class ProfileOptions {
 public:
  void add_to(CLI::App& command);

  bool wanted() const { return option_ != nullptr && option_->count() > 0; }
  bool wants_trace() const { return wanted() && !file_.empty(); }
  // Throws UsageError or Error if FILE cannot be what is meant, or cannot be written. Call before
  // a device is used.
  void check() const;
  // For the stream; nullptr if no profile is wanted.
  Profiler* profiler() const;
  // After the run: what profiler() saw.
  void report() const;
  void write_trace(const std::vector<Profiler::Event>& events, int64_t num_dropped) const;

 private:
  CLI::Option* option_ = nullptr;
  std::string file_;
  mutable std::unique_ptr<Profiler> profiler_;
};

// Two tables, by op and by kind of layer: time, share of `seconds`, calls, GB/s (weights, states
// and activations) and GOP/s; given what reads can reach, also how much of it (weights and states
// alone).
std::string profile_tables(const std::vector<OpResult>& ops, double seconds,
                           double read_bytes_per_second = 0);
// "12 steps, 34.5 ms", and on a device what measuring it cost.
std::string profile_summary(const std::string& steps, double seconds,
                            const std::optional<Profiler::DeviceCost>& cost);

}  // namespace braid

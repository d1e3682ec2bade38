#pragma once

#include <chrono>

#include "tensor/stream.h"

namespace braid {

// Adds to `seconds` what a scope takes, apart from what was queued before it. A scope that queues
// work ends with stop(), which waits for it (and may throw, as a destructor could not).
class PhaseTimer {
 public:
  PhaseTimer(const Stream& stream, double& seconds) : stream_(stream), seconds_(seconds) {
    stream_.synchronize();
    start_ = Clock::now();
  }
  ~PhaseTimer() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;
  void stop() const { stream_.synchronize(); }

 private:
  using Clock = std::chrono::steady_clock;
  const Stream& stream_;
  double& seconds_;
  Clock::time_point start_;
};

}  // namespace braid

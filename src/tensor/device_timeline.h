#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace braid {

// Marks in the queue of a device, and when the device came to them. Used by one thread. All throw
// Error with the device's message on failure.
class DeviceTimeline {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~DeviceTimeline() = default;

  // Puts a mark behind what is queued so far. Marks are numbered from 0 on after each read().
  virtual int mark() = 0;
  // What is queued from now on waits until the next hold(), or release(): then it is in the queue
  // when its turn comes, and the device does not wait for the host in between. What waits too long
  // begins all the same, so that nothing can be stuck for good.
  virtual void hold() = 0;
  virtual void release() = 0;
  // Waits for all marks; when the device came to each, by the host's clock. Also released.
  virtual std::vector<Clock::time_point> read() = 0;
  // Forgets all marks without waiting.
  virtual void clear() noexcept = 0;
  // Ops that have queued something so far.
  virtual int64_t num_ops() const = 0;
  // How long a mark keeps the device, about: what lies between two of them with nothing between.
  virtual double mark_seconds() const = 0;
};

}  // namespace braid

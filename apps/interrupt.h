#pragma once

namespace braid {

// While an object lives, Ctrl-C (SIGINT) sets a flag instead of ending the program. A second one
// before the flag is cleared ends it. One object at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool interrupted() const;
  void clear();
};

}  // namespace braid

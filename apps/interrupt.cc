#include "apps/interrupt.h"

#include <signal.h>
#include <unistd.h>

namespace braid {
namespace {

volatile sig_atomic_t interrupted_flag = 0;
struct sigaction previous_action;

void on_interrupt(int) {
  constexpr int kInterruptedExit = 130;
  if (interrupted_flag != 0) _exit(kInterruptedExit);
  interrupted_flag = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted_flag = 0;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_action);
}

InterruptGuard::~InterruptGuard() { sigaction(SIGINT, &previous_action, nullptr); }

bool InterruptGuard::interrupted() const { return interrupted_flag != 0; }
void InterruptGuard::clear() { interrupted_flag = 0; }

}  // namespace braid

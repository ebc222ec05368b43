#include "interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace qkv::cli {
namespace {

volatile std::sig_atomic_t interrupt_signal = 0;
volatile std::sig_atomic_t interrupt_seconds = 0;

void note_interrupt(int signal) {
  interrupt_signal = signal;
  if (interrupt_seconds > 0) ::alarm(static_cast<unsigned>(interrupt_seconds));
}

void end_late(int) { ::_exit(interrupt_status()); }

}  // namespace

void watch_interrupts(unsigned seconds) {
  interrupt_seconds = static_cast<std::sig_atomic_t>(seconds);
  struct sigaction action {};
  action.sa_handler = end_late;
  sigaction(SIGALRM, &action, nullptr);
  action.sa_handler = note_interrupt;
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // reset: the second one is not ours
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

bool interrupted() {
  static std::atomic_flag noticed;
  if (interrupt_signal == 0) return false;
  // What there is has as long to be written as the signal had to be noticed.
  if (interrupt_seconds > 0 && !noticed.test_and_set()) {
    ::alarm(static_cast<unsigned>(interrupt_seconds));
  }
  return true;
}

int interrupt_status() { return 128 + interrupt_signal; }

}  // namespace qkv::cli

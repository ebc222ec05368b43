#include "interrupt.h"

#include <csignal>

namespace qkv::cli {
namespace {

volatile std::sig_atomic_t was_interrupted = 0;

}  // namespace

void watch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { was_interrupted = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;  // reset: the second one is not ours
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return was_interrupted != 0; }

}  // namespace qkv::cli

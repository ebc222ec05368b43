#include "bus_error.h"

#include <sys/uio.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string_view>

#include "io/mapped_file.h"

namespace qkv::cli {
namespace {

// Only what a handler of signals may call.
void on_bus_error(int, siginfo_t* info, void*) {
  const char* const path = info->si_code > 0 ? mapped_file_at(info->si_addr) : nullptr;
  if (path == nullptr) {  // a signal of another cause: what it does to any program
    std::signal(SIGBUS, SIG_DFL);
    std::raise(SIGBUS);
    return;
  }
  const auto part = [](std::string_view text) {
    return iovec{const_cast<char*>(text.data()), text.size()};
  };
  const iovec line[] = {part("qkv: '"), part(path),
                        part("' became shorter, or could not be read, while it was in use; write a "
                             "new file and rename it over the old one\n")};
  static_cast<void>(!::writev(STDERR_FILENO, line, 3));
  ::_exit(1);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace qkv::cli

// A mapped file that became shorter while it was in use.
#pragma once

namespace qkv::cli {

// From here on such a file ends the process with status 1 and a line that names it, instead of with
// the signal that the kernel sends (SIGBUS).
void explain_bus_errors();

}  // namespace qkv::cli

// Ctrl-C, noticed instead of suffered: the first asks the job to end with what it has, a second one
// kills the process as usual.
#pragma once

namespace qkv::cli {

void watch_interrupts();
bool interrupted();

}  // namespace qkv::cli

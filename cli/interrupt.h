// Ctrl-C and SIGTERM, noticed instead of suffered: the first asks the job to end with what it has,
// a second one kills the process as usual.
#pragma once

namespace qkv::cli {

// A job that has not noticed the signal after `seconds`, or not ended as long after that, is ended
// with the status it would have had; 0 = it may take its time (a checkpoint is being saved). A
// signal that the caller ignores (nohup, a background job of a script) stays ignored.
constexpr unsigned kInterruptSeconds = 2;
void watch_interrupts(unsigned seconds = 0);

bool interrupted();
// 128 and the number of the signal, as a shell has it: 130 for Ctrl-C, 143 for SIGTERM.
int interrupt_status();

}  // namespace qkv::cli

// How many threads the CPU kernels use. Results have the same bits at any number.
//
// Operators may be called from any number of threads; their loops take turns. A process may fork
// between operators, also while other threads run some: the child starts threads of its own. What
// may be used by several threads at once is a table in docs/architecture.md.
#pragma once

namespace qkv {

// Defaults to QKV_THREADS, else the number of cores this process may run on. Throws Error, as every
// operator that would use them, when QKV_THREADS is not a whole number from 1 to 1024.
int num_threads();
// For all threads, from the next loop on; instead of QKV_THREADS. Throws Error when count is not 1
// to 1024.
void set_num_threads(int count);

}  // namespace qkv

// How many threads the CPU kernels use. Results have the same bits at any number.
#pragma once

namespace qkv {

// Defaults to QKV_THREADS, else the number of cores this process may run on.
int num_threads();
// Throws Error when count < 1.
void set_num_threads(int count);

}  // namespace qkv

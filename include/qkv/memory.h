// How much memory a device gives this process: for whoever wants to know what a computation needs.
#pragma once

#include <cstddef>

#include "qkv/device.h"

namespace qkv {

// On the CPU the resident memory of the whole process, 0 where the system does not tell; on a GPU
// what its tensors and scratch space hold.
struct MemoryUse {
  std::size_t now = 0, peak = 0;  // bytes
  std::size_t total = 0;          // what the device has in all, for every process; 0: not told
};
MemoryUse memory_use(Device device);
// From here on the peak is counted anew.
void reset_peak_memory(Device device);

}  // namespace qkv

// The memory of this process, as the system counts it.
#pragma once

#include "qkv/memory.h"

namespace qkv::cpu {

MemoryUse memory_use();
void reset_peak_memory();

}  // namespace qkv::cpu

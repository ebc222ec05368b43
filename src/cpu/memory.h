// Memory of this process: where it comes from, and how much of it the system counts.
#pragma once

#include <cstddef>

#include "qkv/memory.h"

namespace qkv::cpu {

// Memory for free_memory, aligned to a cache line (one AVX-512 register), or null if there is none.
// Much of it lies on large pages, where the system has them: fewer faults when it is first touched,
// and fewer misses when a weight is streamed.
void* fresh_memory(std::size_t bytes);
void free_memory(void* data);

// The same, but large blocks that were released come again.
void* allocate(std::size_t bytes);
// Gives back what `allocate` gave for as many bytes.
void release(void* data, std::size_t bytes);

MemoryUse memory_use();
void reset_peak_memory();

}  // namespace qkv::cpu

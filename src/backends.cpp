// The only file that knows every device.
#include "core/backend.h"
#include "core/check.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

namespace qkv {

Backend& backend(Device device) {
  return device.type == DeviceType::cpu ? cpu_backend() : cuda_backend(device.index);
}

void synchronize(Device device) { backend(device).synchronize(); }
MemoryUse memory_use(Device device) { return backend(device).memory_use(); }
void reset_peak_memory(Device device) { backend(device).reset_peak_memory(); }

}  // namespace qkv

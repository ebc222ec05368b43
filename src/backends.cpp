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

}  // namespace qkv

// The CUDA backend, from cuda/backend.cpp or, in a build without CUDA, from cuda/absent.cpp.
#pragma once

#include "core/backend.h"

namespace qkv {

// Throws Error when this build or this machine has no such device.
Backend& cuda_backend(int index);

}  // namespace qkv

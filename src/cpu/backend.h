// The CPU backend.
#pragma once

#include "core/backend.h"

namespace qkv {

Backend& cpu_backend();

}  // namespace qkv

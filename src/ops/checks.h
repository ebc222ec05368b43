// Checks that most operators begin with.
#pragma once

#include "core/check.h"

namespace qkv {

inline void check_defined(const char* op, const char* name, const Tensor& x) {
  if (!x.defined()) fail("{}: {} is undefined{}", op, name, x.why_undefined());
}

inline void check_floating(const char* op, const char* name, const Tensor& x) {
  check_defined(op, name, x);
  check(is_floating(x.dtype()), "{}: {} must be floating point, got {} {}", op, name, x.dtype(),
        x.shape());
}

}  // namespace qkv

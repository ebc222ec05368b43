// Checks that most operators begin with.
#pragma once

#include "core/check.h"

namespace qkv {

inline void check_defined(const char* op, const char* name, const Tensor& x) {
  check(x.defined(), "{}: {} is undefined", op, name);
}

inline void check_floating(const char* op, const char* name, const Tensor& x) {
  check_defined(op, name, x);
  check(is_floating(x.dtype()), "{}: {} must be floating point, got {} {}", op, name, x.dtype(),
        x.shape());
}

}  // namespace qkv

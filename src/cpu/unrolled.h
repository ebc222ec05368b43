// Loops over registers, for files that are written in an instruction set's own words.
#pragma once

#include <utility>

#define QKV_INLINE [[gnu::always_inline]] inline

namespace qkv::cpu {

// body(0) .. body(kCount - 1) with constant indices, so that arrays of registers stay registers.
template <int kCount, class Body>
QKV_INLINE void unrolled(Body body) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, i>()), ...);
  }
  (std::make_integer_sequence<int, kCount>());
}

}  // namespace qkv::cpu

// From a run-time dtype to a compile-time element type, without macros.
#pragma once

#include <cstdint>

#include "core/check.h"

namespace qkv {

// Calls f.template operator()<T>() with T = float, bf16 or f16.
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<bf16>();
    case DType::f16: return f.template operator()<f16>();
    default: fail("expected a floating-point dtype, got {}", dtype);
  }
}

template <class F>
decltype(auto) dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::i32: return f.template operator()<std::int32_t>();
    case DType::i64: return f.template operator()<std::int64_t>();
    case DType::i8: return f.template operator()<std::int8_t>();
    case DType::u8: return f.template operator()<std::uint8_t>();
    case DType::boolean: return f.template operator()<bool>();
    default: return dispatch_float(dtype, static_cast<F&&>(f));
  }
}

}  // namespace qkv

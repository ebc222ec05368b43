// Orders of floating-point numbers that hold for NaN too.
#pragma once

namespace qkv {

// Whether a stands before b where the largest is first and NaN last. Unlike a > b this is a strict
// weak order of all numbers, which sorting needs to stay inside its range.
template <class T>
constexpr bool is_larger(T a, T b) {
  const bool a_is_number = a == a, b_is_number = b == b;
  return a_is_number && (!b_is_number || a > b);
}
// The same with the smallest first.
template <class T>
constexpr bool is_smaller(T a, T b) {
  return is_larger(-a, -b);
}

}  // namespace qkv

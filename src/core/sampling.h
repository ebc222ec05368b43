// The arithmetic of choosing a token, the same to the last bit on every device: the probability of
// a token is counted in whole numbers, so that sums of them do not depend on their order. (These
// are constexpr because nvcc compiles them for the GPU then.)
#pragma once

#include <bit>
#include <cstdint>

namespace qkv {

// Finer than this are no probabilities; the sum over kMaxChoices of them fits 64 bits.
inline constexpr int kWeightBits = 38;
inline constexpr std::int64_t kMaxChoices = std::int64_t{1} << 24;
inline constexpr int kDrawBits = 53;

// Greater for a greater logit; NaN is above everything, and -0 is 0.
constexpr std::uint32_t rank_of(float logit) {
  if (logit != logit) return UINT32_MAX;
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
// Whether a rank is that of a finite number.
constexpr bool is_finite_rank(std::uint32_t rank) {
  return rank > 0x007fffffu && rank < 0xff800000u;
}

// 2^-x in units of 2^-kWeightBits, at least one; from kWeightBits on there is none. x >= 0.
constexpr bool has_weight(double x) { return x < kWeightBits; }
constexpr std::uint64_t weight_at(double x) {
  if (!has_weight(x)) return 0;
  const auto whole = static_cast<std::uint32_t>(x);
  const auto f = static_cast<std::uint32_t>((x - whole) * 0x1p32);
  // 2^-f = 1 - f (c1 - f (c2 - ...)) with ck = ln(2)^k / k!, in units of 2^-32.
  constexpr std::uint32_t factors[] = {2977044472, 1031764991, 238388332, 41309550, 5726720, 661577,
                                       65510,      5676,       437,       30,       2};
  constexpr int count = sizeof(factors) / sizeof(factors[0]);
  const auto times_f = [f](std::uint32_t c) {
    return static_cast<std::uint32_t>(std::uint64_t{f} * c >> 32);
  };
  std::uint32_t p = factors[count - 1];
  for (int k = count - 2; k >= 0; --k) p = factors[k] - times_f(p);
  const std::uint64_t power = (std::uint64_t{1} << 32) - times_f(p);
  const std::uint64_t weight = power << (kWeightBits - 32) >> whole;
  return weight > 0 ? weight : 1;
}

// Of a logit beside the largest one; `rate` is log2(e) / temperature.
constexpr std::uint64_t weight_of(float logit, float best, double rate) {
  return weight_at((static_cast<double>(best) - static_cast<double>(logit)) * rate);
}

// A logit of a token that occurred before.
constexpr float penalized(float logit, float penalty) {
  return logit > 0 ? logit / penalty : logit * penalty;
}

// How much of `total` the likeliest must reach for a share of it.
constexpr std::uint64_t share_of(std::uint64_t total, double share) {
  const double wanted = share * static_cast<double>(total);
  const auto whole = static_cast<std::uint64_t>(wanted);
  const std::uint64_t rounded = whole + (static_cast<double>(whole) < wanted ? 1 : 0);
  return rounded < 1 ? 1 : rounded < total ? rounded : total;
}

// draw / 2^kDrawBits of `total`, rounded down: where among the summed weights the choice falls.
constexpr std::uint64_t place_of(std::uint64_t draw, std::uint64_t total) {
  constexpr std::uint64_t low = UINT32_MAX;
  const std::uint64_t a = draw << (64 - kDrawBits), a0 = a & low, a1 = a >> 32;
  const std::uint64_t b0 = total & low, b1 = total >> 32;
  const std::uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & low);
  return a1 * b1 + (middle >> 32) + (other >> 32);
}

}  // namespace qkv

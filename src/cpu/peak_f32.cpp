#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/peak_f32.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest: it includes this file once per target.
#include <hwy/highway.h>

#include "cpu/gemm_kernel-inl.h"
#include "cpu/peak.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

thread_local volatile float sink;  // all threads write

#if HWY_TARGET == HWY_NEON

// A tile of a product with all it reads in the first-level cache. A Neoverse-V1 that is given
// multiply-adds on registers and nothing else starts two or three in a cycle (42 to 62 GFLOP/s a
// core); with loads between them it starts nearly the four that it can (78 of 83).
constexpr int kDepth = 256;

HWY_NOINLINE void peak_work(std::int64_t rounds) {
  HWY_ALIGN float left[kDepth * kLeftTogether], right[kDepth * kPanel], sums[kMostRows * kPanel];
  std::fill_n(left, kDepth * kLeftTogether, sink + 0.75f);
  std::fill_n(right, kDepth * kPanel, sink + 0.5f);
  for (std::int64_t round = 0; round < rounds; ++round) {
    multiply_rows<kMostRows>(left, right, kDepth, sums, kPanel, false);
  }
  sink = sums[0] * 0.0f;
}

double peak_flops() { return 2.0 * kMostRows * kPanel * kDepth; }

#else

// A multiply-add takes 4 cycles and 2 start in each: 8 sums must be under way. Before AVX-512, x86
// has 16 registers, and two of them hold the factors.
#if HWY_TARGET == HWY_AVX3
constexpr int kSums = 16;
#else
constexpr int kSums = 12;
#endif
constexpr int kSteps = 4;  // per round, so that counting the rounds costs nothing

HWY_NOINLINE void peak_work(std::int64_t rounds) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  // x = a x + b. The starts differ, else the compiler would keep one sum for all; what is read at
  // run time cannot be folded; a < 1 keeps the sums near b / (1 - a); and a product of the sum
  // itself cannot be taken out of the loop, even where multiply and add are two instructions.
  V sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = hn::Set(d, sink + static_cast<float>(i));
  const V a = hn::Set(d, sink + 0.75f), b = hn::Set(d, sink + 0.5f);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) sums[i] = hn::MulAdd(a, sums[i], b);
    }
  }
  V total = sums[0];
  for (int i = 1; i < kSums; ++i) total = hn::Add(total, sums[i]);
  sink = hn::GetLane(total) * 0.0f;
}

double peak_flops() {
  return 2.0 * kSums * kSteps * static_cast<double>(hn::Lanes(hn::ScalableTag<float>()));
}

#endif

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(peak_work);
HWY_EXPORT(peak_flops);

PeakLoop peak_loop_f32() {
  const auto work = [](std::int64_t rounds) {
    const auto chosen = HWY_DYNAMIC_DISPATCH(peak_work);
    chosen(rounds);
  };
  return {work, HWY_DYNAMIC_DISPATCH(peak_flops)()};
}

}  // namespace qkv::cpu
#endif

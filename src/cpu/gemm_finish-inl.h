// What follows a matrix product: bias, activation, rounding to the dtype of the result. Per-target
// code: included once per SIMD target.
#if defined(QKV_CPU_GEMM_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QKV_CPU_GEMM_FINISH_INL_H_
#undef QKV_CPU_GEMM_FINISH_INL_H_
#else
#define QKV_CPU_GEMM_FINISH_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "cpu/activation-inl.h"
#include "cpu/gemm_engine.h"
#include "cpu/lanes-inl.h"
#include "cpu/rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kMostLanes = 16;  // of f32, on any target
// Vectors finished side by side: a gelu is one long chain.
inline constexpr int kFinishTogether = HWY_TARGET == HWY_NEON ? 4 : 1;

// One vector, rounded to the element type.
template <class V>
HWY_INLINE void store_as(V x, float* to) {
  hn::StoreU(x, hn::ScalableTag<float>(), to);
}
template <class V>
HWY_INLINE void store_as(V x, bf16* to) {
  store_bf16(x, to);
}
template <class V>
HWY_INLINE void store_as(V x, f16* to) {
  const hn::ScalableTag<float> d;
  if constexpr (kHalfByInstruction) {
    const hn::Rebind<hwy::float16_t, decltype(d)> narrow;
    hn::StoreU(hn::DemoteTo(narrow, x), narrow, reinterpret_cast<hwy::float16_t*>(to));
  } else {
    HWY_ALIGN float wide[kMostLanes];
    hn::Store(x, d, wide);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) to[i] = f16(wide[i]);
  }
}

template <class T>
struct FinishRows {
  const float* c;  // whole vectors
  std::int64_t c_stride, rows, columns;
  const float* bias;
  const Rows& y;

  template <Activation kFunction>
  HWY_INLINE void operator()() const {
    const hn::ScalableTag<float> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const std::int64_t whole = columns / lanes * lanes;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = c + r * c_stride;
      T* to = reinterpret_cast<T*>(y.data) + r * y.stride;
      // kCount vectors from column j on, to `at`.
      const auto put = [&]<int kCount>(std::int64_t j, T* at) QKV_LANES_BODY {
        hn::Vec<decltype(d)> x[kCount];
        HWY_UNROLL(4)
        for (int i = 0; i < kCount; ++i) {
          const std::int64_t column = j + i * lanes;
          x[i] = hn::Add(hn::LoadU(d, row + column), hn::LoadU(d, bias + column));
        }
        apply_each<kFunction>(d, x);
        HWY_UNROLL(4)
        for (int i = 0; i < kCount; ++i) store_as(x[i], at + i * lanes);
      };
      std::int64_t j = 0;
      const auto left = [&] { return (whole - j) / lanes; };
      for (; kFinishTogether == 4 && left() >= 4 && left() != 6; j += 4 * lanes) {
        put.template operator()<4>(j, to + j);
      }
      for (; kFinishTogether == 4 && left() >= 3; j += 3 * lanes) {  // twice: a panel of Arm's
        put.template operator()<3>(j, to + j);
      }
      for (; j < whole; j += lanes) put.template operator()<1>(j, to + j);
      if (whole < columns) {
        T last[kMostLanes];
        put.template operator()<1>(whole, last);
        std::copy_n(last, columns - whole, to + whole);
      }
    }
  }
};

template <class T>
HWY_NOINLINE void finish_rows_as(const float* c, std::int64_t c_stride, std::int64_t rows,
                                 std::int64_t columns, const float* bias, const Finish& finish) {
  dispatch_activation(finish.activation, FinishRows<T>{c, c_stride, rows, columns, bias, finish.y});
}

// Zeros up to kMostColumns, and where there is none.
inline void load_bias(const Rows& from, std::int64_t columns, float* to) {
  if (from.data == nullptr) {
    std::fill_n(to, kMostColumns, 0.0f);
  } else {
    load_rows(from, 1, columns, to, kMostColumns);
  }
}

inline void finish_rows(const float* c, std::int64_t c_stride, std::int64_t rows,
                        std::int64_t columns, const Finish& finish) {
  const Rows& from = finish.bias;
  const bool in_place =
      from.data != nullptr && from.dtype == DType::f32 && columns % lane_count() == 0;
  Room<float, kMostColumns> room;
  const float* bias = reinterpret_cast<const float*>(from.data);
  if (!in_place) {
    bias = room.get();
    load_bias(from, columns, room.get());
  }
  const auto run = finish.y.dtype == DType::bf16  ? finish_rows_as<bf16>
                   : finish.y.dtype == DType::f16 ? finish_rows_as<f16>
                                                  : finish_rows_as<float>;
  run(c, c_stride, rows, columns, bias, finish);
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

// With Highway's own exp, so that what the library is compared with owes nothing to its kernels.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "plain_softmax.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes before the rest: it includes this file once per target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "plain_softmax.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cli::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void softmax_row(float* row, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;  // the end of a row, element by element
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = count - count % lanes;

  auto maxima = hn::Set(d, row[0]);
  for (std::int64_t i = 0; i < whole; i += lanes) maxima = hn::Max(maxima, hn::LoadU(d, row + i));
  float max = hn::GetLane(hn::MaxOfLanes(d, maxima));
  for (std::int64_t i = whole; i < count; ++i) max = row[i] > max ? row[i] : max;

  auto sums = hn::Zero(d);
  for (std::int64_t i = 0; i < whole; i += lanes) {
    const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, row + i), hn::Set(d, max)));
    hn::StoreU(e, d, row + i);
    sums = hn::Add(sums, e);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (std::int64_t i = whole; i < count; ++i) {
    row[i] = hn::GetLane(hn::Exp(one, hn::Set(one, row[i] - max)));
    sum += row[i];
  }

  const float scale = 1 / sum;
  for (std::int64_t i = 0; i < whole; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, scale)), d, row + i);
  }
  for (std::int64_t i = whole; i < count; ++i) row[i] *= scale;
}

}  // namespace qkv::cli::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cli {

HWY_EXPORT(softmax_row);

void plain_softmax(float* row, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(softmax_row)(row, count);
}

}  // namespace qkv::cli
#endif

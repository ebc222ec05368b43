// Gradients of the norms, one source for every SIMD target. x and dy are read once for dx, dweight
// and dbias together: chunks of rows add up their own dweight and dbias, and the chunks, which
// depend on the shapes alone, are added up in order.
#include <algorithm>
#include <cstdint>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/scratch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/norm_backward.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/norm_parameters-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

template <class T>
struct Row {
  const T *x, *dy, *dsum;  // dsum may be null
  T* dx;
  float mean, rstd;
};

// dx = rstd (g - mean(g) - xhat mean(g xhat)) + dsum, with g = dy weight.
template <class T>
void row_backward(const Row<T>& row, const NormParameters& p, bool centered) {
  const VecF32 mean = hn::Set(F32(), row.mean), rstd = hn::Set(F32(), row.rstd);
  const auto normed = [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    return hn::Mul(hn::Sub(load_lanes(row.x + i, n), mean), rstd);
  };
  const auto weighted = [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 dy = load_lanes(row.dy + i, n);
    return p.weight != nullptr ? hn::Mul(dy, load_lanes(p.weight + i, n)) : dy;
  };
  Sum total, dot;
  for_lanes(p.width, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 g = weighted(i, n);  // 0 beyond n, as dy is
    total.add(g);
    dot.add(hn::Mul(g, normed(i, n)));
  });
  const double count = static_cast<double>(p.width);
  const VecF32 g_mean = hn::Set(F32(), centered ? static_cast<float>(total.total() / count) : 0);
  const VecF32 g_dot = hn::Set(F32(), static_cast<float>(dot.total() / count));
  for_lanes(p.width, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    const VecF32 g = hn::Sub(hn::Sub(weighted(i, n), g_mean), hn::Mul(normed(i, n), g_dot));
    VecF32 d = hn::Mul(rstd, g);
    if (row.dsum != nullptr) d = hn::Add(d, load_lanes(row.dsum + i, n));
    store_lanes(d, row.dx + i, n);
  });
}

// dweight += dy xhat, dbias += dy over a few rows: sums of one column stay in a register.
template <class T>
void add_parameters(const Row<T>* rows, std::int64_t count, std::int64_t width, float* dweight,
                    float* dbias) {
  for_lanes(width, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    VecF32 dw = load_lanes(dweight + i, n), db = load_lanes(dbias + i, n);
    for (std::int64_t r = 0; r < count; ++r) {
      const VecF32 dy = load_lanes(rows[r].dy + i, n);
      const VecF32 mean = hn::Set(F32(), rows[r].mean), rstd = hn::Set(F32(), rows[r].rstd);
      const VecF32 xhat = hn::Mul(hn::Sub(load_lanes(rows[r].x + i, n), mean), rstd);
      dw = hn::Add(dw, hn::Mul(dy, xhat));
      db = hn::Add(db, dy);
    }
    store_lanes(dw, dweight + i, n);
    store_lanes(db, dbias + i, n);
  });
}

template <class T>
void backward_rows(const NormBackward& p, const NormParameters& parameters, std::int64_t begin,
                   std::int64_t end, float* sums) {
  constexpr std::int64_t kTogether = 8;  // rows that the first cache holds until they are summed
  const std::int64_t width = parameters.width;
  Row<T> rows[kTogether];
  for (std::int64_t first = begin; first < end; first += kTogether) {
    const std::int64_t count = std::min(kTogether, end - first);
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t at = (first + k) * width;
      rows[k] = {p.x.data<T>() + at,
                 p.dy.data<T>() + at,
                 p.dsum.defined() ? p.dsum.data<T>() + at : nullptr,
                 p.dx.data<T>() + at,
                 p.centered ? p.mean.data<float>()[first + k] : 0.0f,
                 p.rstd.data<float>()[first + k]};
      row_backward(rows[k], parameters, p.centered);
    }
    if (sums != nullptr) add_parameters(rows, count, width, sums, sums + width);
  }
}

void norm_backward_kernel(const NormBackward& p) {
  const std::int64_t width = p.x.size(-1), rows = p.x.numel() / width;
  const NormParameters parameters(width, p.weight, Tensor(), p.weight_offset);
  const bool has_sums = p.dweight.defined() || p.dbias.defined();
  const std::int64_t chunk = std::max<std::int64_t>((rows + 63) / 64, kTaskElements / width + 1);
  const std::int64_t chunks = (rows + chunk - 1) / chunk;
  const Scratch<float> sums(has_sums ? chunks * 2 * width : 0);
  dispatch_float(p.x.dtype(), [&]<class T>() {
    for_each_rows(chunks, chunk * width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        float* own = has_sums ? sums.get() + c * 2 * width : nullptr;
        if (has_sums) std::fill_n(own, 2 * width, 0.0f);
        backward_rows<T>(p, parameters, c * chunk, std::min(rows, (c + 1) * chunk), own);
      }
    });
  });
  const Scratch<double> total(has_sums ? width : 0);
  const auto add_up = [&](const Tensor& to, const float* from) {
    if (!to.defined()) return;
    std::fill_n(total.get(), width, 0.0);
    for (std::int64_t c = 0; c < chunks; ++c) {
      for (std::int64_t i = 0; i < width; ++i) total[i] += from[c * 2 * width + i];
    }
    std::copy_n(total.get(), width, to.data<float>());
  };
  add_up(p.dweight, sums.get());
  add_up(p.dbias, sums.get() + width);
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(norm_backward_kernel);

void norm_backward(const NormBackward& problem) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(norm_backward_kernel)(problem);
  Tensor ddropped = problem.ddropped;
  if (ddropped.defined()) dropout(problem.dx, problem.dropout, problem.seed, ddropped);
}

}  // namespace qkv::cpu
#endif

// Rows of a table, and gradients added to them, one source for every SIMD target.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/embedding.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

template <class T>
void add_row(const T* from, float* to, std::int64_t count) {
  for_lanes(count, [&](std::int64_t i, std::int64_t n) QKV_LANES_BODY {
    store_lanes(hn::Add(load_lanes(to + i, n), load_lanes(from + i, n)), to + i, n);
  });
}

void embedding_backward_kernel(const Tensor& ids, const Tensor& dy, std::int64_t padding,
                               Tensor& dtable) {
  const std::int64_t width = dtable.size(1);
  const auto* id = ids.data<std::int64_t>();
  auto* to = dtable.data<float>();
  // Positions by id, in order within one: a row of the table belongs to one task, which adds to it
  // in the order of the text.
  std::vector<std::int64_t> order(static_cast<std::size_t>(ids.numel())), first;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return id[a] < id[b]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || id[order[i]] != id[order[i - 1]]) first.push_back(static_cast<std::int64_t>(i));
  }
  first.push_back(ids.numel());
  const auto distinct = static_cast<std::int64_t>(first.size()) - 1;
  dispatch_float(dy.dtype(), [&]<class T>() {
    const T* from = dy.data<T>();
    for_each_rows(distinct, width, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = first[begin]; i < first[end]; ++i) {
        const std::int64_t at = order[i];
        if (id[at] != padding) add_row(from + at * width, to + id[at] * width, width);
      }
    });
  });
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(embedding_backward_kernel);

void embedding(const Tensor& ids, const Tensor& table, Tensor& y) {
  const std::int64_t width = table.size(1);
  const std::size_t bytes = static_cast<std::size_t>(width) * size_of(table.dtype());
  const auto* id = ids.data<std::int64_t>();
  const auto* from = static_cast<const std::byte*>(table.raw());
  auto* to = static_cast<std::byte*>(y.raw());
  for_each_rows(ids.numel(), width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(to + static_cast<std::size_t>(i) * bytes,
                  from + static_cast<std::size_t>(id[i]) * bytes, bytes);
    }
  });
}

void embedding_backward(const Tensor& ids, const Tensor& dy, std::int64_t padding, Tensor& dtable) {
  settle_target();
  HWY_DYNAMIC_DISPATCH(embedding_backward_kernel)(ids, dy, padding, dtable);
}

}  // namespace qkv::cpu
#endif

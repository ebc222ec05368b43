// Walking tensors of one shape and any strides, run by run of their last axis.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/threads.h"
#include "qkv/tensor.h"

namespace qkv::cpu {

// Calls body(offsets, count) for each run along the last axis, in parallel; offsets[t] is where the
// run begins in tensor t, in elements.
template <std::size_t kTensors, class Body>
void for_each_run(const std::array<const Tensor*, kTensors>& tensors, Body&& body) {
  const Tensor& x = *tensors[0];
  if (x.numel() == 0) return;
  std::array<std::int64_t, kTensors> zero{};
  if (x.rank() == 0) return body(zero, std::int64_t{1});
  const std::int64_t run = x.size(-1), runs = x.numel() / run;
  // Enough work per task to be worth handing out.
  const std::int64_t per_task = std::max<std::int64_t>(1, 16384 / run);
  parallel_for((runs + per_task - 1) / per_task, [&](std::int64_t task) {
    const std::int64_t end = std::min(runs, (task + 1) * per_task);
    for (std::int64_t index = task * per_task; index < end; ++index) {
      std::array<std::int64_t, kTensors> at{};
      std::int64_t rest = index;
      for (int axis = x.rank() - 2; axis >= 0; --axis) {
        const std::int64_t i = rest % x.size(axis);
        rest /= x.size(axis);
        for (std::size_t t = 0; t < kTensors; ++t) at[t] += i * tensors[t]->stride(axis);
      }
      body(at, run);
    }
  });
}

inline std::int64_t run_stride(const Tensor& x) { return x.rank() == 0 ? 1 : x.stride(-1); }

// Calls body(begin, end) for pieces of [0, count), in parallel.
template <class Body>
void for_each_piece(std::int64_t count, std::int64_t piece, Body&& body) {
  parallel_for((count + piece - 1) / piece,
               [&](std::int64_t task) { body(task * piece, std::min(count, (task + 1) * piece)); });
}

}  // namespace qkv::cpu

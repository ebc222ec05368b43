// Walking tensors of one shape and any strides, run by run, with as few and long runs as their
// strides allow.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/threads.h"
#include "qkv/tensor.h"

namespace qkv::cpu {

// Work below this many elements is done by the calling thread: handing it out would take longer.
inline constexpr std::int64_t kSerialElements = 32768;
inline constexpr std::int64_t kTaskElements = 16384;

// Calls body(begin, end) for pieces of [0, count) where each index stands for `width` elements, in
// parallel when there is enough to do. The pieces depend on the sizes alone.
template <class Body>
void for_each_rows(std::int64_t count, std::int64_t width, Body&& body) {
  if (count <= 0) return;
  if (count * width < kSerialElements) return body(std::int64_t{0}, count);
  const std::int64_t piece =
      std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(width, 1));
  parallel_for((count + piece - 1) / piece,
               [&](std::int64_t task) { body(task * piece, std::min(count, (task + 1) * piece)); });
}

// Pieces of elements: their bounds are multiples of kTaskElements.
template <class Body>
void for_each_span(std::int64_t count, Body&& body) {
  for_each_rows(count, 1, body);
}

template <std::size_t kTensors>
struct Walk {
  int rank = 0;  // axes outside of a run
  std::array<std::int64_t, kMaxRank> extents{};
  std::array<std::array<std::int64_t, kTensors>, kMaxRank> strides{};
  std::int64_t runs = 1, run = 1;           // how many, and of how many elements
  std::array<std::int64_t, kTensors> step;  // between the elements of a run, by tensor

  using Offsets = std::array<std::int64_t, kTensors>;

  explicit Walk(const std::array<const Tensor*, kTensors>& tensors) {
    step.fill(1);
    for (int axis = 0; axis < tensors[0]->rank(); ++axis) {
      const std::int64_t extent = tensors[0]->size(axis);
      if (extent == 1) continue;
      Offsets stride;
      for (std::size_t t = 0; t < kTensors; ++t) stride[t] = tensors[t]->stride(axis);
      if (rank > 0 && continues(strides[rank - 1], stride, extent)) {
        extents[rank - 1] *= extent;
        strides[rank - 1] = stride;
      } else {
        extents[rank] = extent;
        strides[rank++] = stride;
      }
    }
    if (rank > 0) {
      --rank;
      run = extents[rank];
      step = strides[rank];
    }
    for (int axis = 0; axis < rank; ++axis) runs *= extents[axis];
  }

  // Where run `index` begins.
  Offsets begin(std::int64_t index) const {
    Offsets at{};
    for (int axis = rank - 1; axis >= 0; --axis) {
      const std::int64_t i = index % extents[axis];
      index /= extents[axis];
      for (std::size_t t = 0; t < kTensors; ++t) at[t] += i * strides[axis][t];
    }
    return at;
  }

 private:
  static bool continues(const Offsets& outer, const Offsets& inner, std::int64_t extent) {
    for (std::size_t t = 0; t < kTensors; ++t) {
      if (outer[t] != inner[t] * extent) return false;
    }
    return true;
  }
};

// Calls body(offsets, count) for runs, or parts of long ones; offsets[t] is where the run begins in
// tensor t, in elements.
template <std::size_t kTensors, class Body>
void for_each_run(const Walk<kTensors>& walk, Body&& body) {
  if (walk.runs * walk.run == 0) return;
  if (walk.run >= kSerialElements) {
    const std::int64_t parts = (walk.run + kTaskElements - 1) / kTaskElements;
    parallel_for(walk.runs * parts, [&](std::int64_t task) {
      auto at = walk.begin(task / parts);
      const std::int64_t first = task % parts * kTaskElements;
      for (std::size_t t = 0; t < kTensors; ++t) at[t] += first * walk.step[t];
      body(at, std::min(kTaskElements, walk.run - first));
    });
    return;
  }
  for_each_rows(walk.runs, walk.run, [&](std::int64_t begin, std::int64_t end) {
    // The innermost axis outside of the run moves fastest: its strides are added, not computed.
    const std::int64_t inner = walk.rank > 0 ? walk.extents[walk.rank - 1] : 1;
    for (std::int64_t index = begin; index < end;) {
      auto at = walk.begin(index);
      const std::int64_t stop = std::min(end, (index / inner + 1) * inner);
      for (; index < stop; ++index) {
        body(at, walk.run);
        if (walk.rank == 0) continue;
        for (std::size_t t = 0; t < kTensors; ++t) at[t] += walk.strides[walk.rank - 1][t];
      }
    }
  });
}

}  // namespace qkv::cpu

// Copies between tensors of any strides and dtypes, one source for every SIMD target.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/dispatch.h"
#include "cpu/kernels.h"
#include "cpu/prefetch.h"
#include "cpu/targets.h"
#include "cpu/walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/copy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/lanes-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {
namespace {

// Between floating-point dtypes.
template <class From, class To>
void convert_run(const From* from, std::int64_t from_step, To* to, std::int64_t to_step,
                 std::int64_t count) {
  if (from_step == 1 && to_step == 1) {
    for_lanes(count, [&](std::int64_t i, std::int64_t n)
                         QKV_LANES_BODY { store_lanes(load_lanes(from + i, n), to + i, n); });
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      to[i * to_step] = To(static_cast<float>(from[i * from_step]));
    }
  }
}

void convert_kernel(const Tensor& from, Tensor& to) {
  const Walk<2> walk({&from, &to});
  dispatch_float(from.dtype(), [&]<class From>() {
    dispatch_float(to.dtype(), [&]<class To>() {
      const From* source = from.data<From>();
      To* target = to.data<To>();
      for_each_run(walk, [&](const auto& at, std::int64_t count) {
        convert_run(source + at[0], walk.step[0], target + at[1], walk.step[1], count);
      });
    });
  });
}

#if HWY_TARGET != HWY_SCALAR
// Three rounds of pairing row i with row i + 4.
HWY_INLINE void transpose_8x8(const std::uint16_t* from, std::int64_t from_stride,
                              std::uint16_t* to, std::int64_t to_stride) {
  const hn::FixedTag<std::uint16_t, 8> d;
  hn::Vec<decltype(d)> a[8], b[8];
  HWY_UNROLL(8)
  for (int i = 0; i < 8; ++i) a[i] = hn::LoadU(d, from + i * from_stride);
  HWY_UNROLL(3)
  for (int round = 0; round < 3; ++round) {
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      b[2 * i] = hn::InterleaveLower(d, a[i], a[i + 4]);
      b[2 * i + 1] = hn::InterleaveUpper(d, a[i], a[i + 4]);
    }
    HWY_UNROLL(8)
    for (int i = 0; i < 8; ++i) a[i] = b[i];
  }
  HWY_UNROLL(8)
  for (int i = 0; i < 8; ++i) hn::StoreU(a[i], d, to + i * to_stride);
}
#endif

constexpr std::int64_t kTile = 64;

// to[j][i] = from[i][j] of at most kTile x kTile. By way of buffers: rows a power of two apart fall
// into one set of a cache, and a narrow block does not use up a line at once.
void transpose_tile(const std::uint16_t* from, std::int64_t from_stride, std::int64_t rows,
                    std::int64_t columns, std::uint16_t* to, std::int64_t to_stride) {
  std::uint16_t source[kTile * kTile], target[kTile * kTile];
  for (std::int64_t i = 0; i < rows; ++i) {
    std::memcpy(source + i * kTile, from + i * from_stride,
                static_cast<std::size_t>(columns) * sizeof *from);
  }
#if HWY_TARGET != HWY_SCALAR
  for (std::int64_t i = 0; i < rows; i += 8) {
    for (std::int64_t j = 0; j < columns; j += 8) {
      transpose_8x8(source + i * kTile + j, kTile, target + j * kTile + i, kTile);
    }
  }
#else
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) target[j * kTile + i] = source[i * kTile + j];
  }
#endif
  for (std::int64_t j = 0; j < columns; ++j) {
    std::memcpy(to + j * to_stride, target + j * kTile,
                static_cast<std::size_t>(rows) * sizeof *to);
  }
}

void transpose_tile(const float* from, std::int64_t from_stride, std::int64_t rows,
                    std::int64_t columns, float* to, std::int64_t to_stride) {
  transpose_block(from, from_stride, rows, columns, to, to_stride);
}

// `axis` of the walk is contiguous in the source as the run is in the target: tiles of the two.
template <class T>
void transpose_walk(const Walk<2>& walk, int axis, const T* from, T* to) {
  // Blocks of tiles: every row of a block is in a page of its own, which tiles then share.
  constexpr std::int64_t kBlock = 4 * kTile;
  const std::int64_t rows = walk.run, columns = walk.extents[axis];
  const std::int64_t blocks_i = (rows + kBlock - 1) / kBlock;
  const std::int64_t blocks_j = (columns + kBlock - 1) / kBlock;
  const std::int64_t from_stride = walk.step[0], to_stride = walk.strides[axis][1];
  Walk<2> outer = walk;  // the axes that are left
  outer.runs /= columns;
  for (int i = axis; i + 1 < walk.rank; ++i) {
    outer.extents[i] = walk.extents[i + 1];
    outer.strides[i] = walk.strides[i + 1];
  }
  --outer.rank;
  const auto transpose_one = [&](std::int64_t block) {
    const auto at = outer.begin(block / blocks_i / blocks_j);
    const std::int64_t first_i = block % blocks_i * kBlock;
    const std::int64_t first_j = block / blocks_i % blocks_j * kBlock;
    const std::int64_t end_i = std::min(rows, first_i + kBlock);
    const std::int64_t end_j = std::min(columns, first_j + kBlock);
    for (std::int64_t i = first_i; i < end_i; i += kTile) {
      for (std::int64_t j = first_j; j < end_j; j += kTile) {
        // The tile after this one: too few of its rows are asked for at once without this.
        const bool last = j + kTile >= end_j;
        const std::int64_t next_i = last ? i + kTile : i, next_j = last ? first_j : j + kTile;
        const std::int64_t ni = std::min(kTile, end_i - next_i),
                           nj = std::min(kTile, end_j - next_j);
        for (std::int64_t k = 0; k < ni; ++k) {
          prefetch_row(from + at[0] + (next_i + k) * from_stride + next_j, nj);
        }
        for (std::int64_t k = 0; k < nj && ni > 0; ++k) {
          prefetch_to_write(to + at[1] + next_i + (next_j + k) * to_stride, 0, 1,
                            ni * static_cast<std::int64_t>(sizeof(*to)));
        }
        transpose_tile(from + at[0] + i * from_stride + j, from_stride, std::min(kTile, end_i - i),
                       std::min(kTile, end_j - j), to + at[1] + i + j * to_stride, to_stride);
      }
    }
  };
  for_each_rows(outer.runs * blocks_i * blocks_j,
                std::min(rows, kBlock) * std::min(columns, kBlock),
                [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t block = begin; block < end; ++block) transpose_one(block);
                });
}

// Bits of one size; false when no axis is contiguous in the source.
template <class T>
bool transpose_bits(const Walk<2>& walk, const void* from, void* to) {
  if (walk.step[1] != 1 || walk.step[0] == 1) return false;
  for (int axis = 0; axis < walk.rank; ++axis) {
    if (walk.strides[axis][0] == 1) {
      transpose_walk(walk, axis, static_cast<const T*>(from), static_cast<T*>(to));
      return true;
    }
  }
  return false;
}

bool transpose_kernel(const Walk<2>& walk, std::size_t size, const void* from, void* to) {
  if (size == 4) return transpose_bits<float>(walk, from, to);
  if (size == 2) return transpose_bits<std::uint16_t>(walk, from, to);
  return false;
}

}  // namespace
}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(convert_kernel);
HWY_EXPORT(transpose_kernel);

namespace {

template <class T>
void copy_bits(const Walk<2>& walk, const void* from, void* to) {
  const T* source = static_cast<const T*>(from);
  T* target = static_cast<T*>(to);
  // Runs that do not follow each other in the source.
  const std::int64_t next = walk.rank > 0 ? walk.strides[walk.rank - 1][0] : 0;
  const std::int64_t ahead = next != walk.run ? kAhead * next : 0;
  for_each_run(walk, [&](const auto& at, std::int64_t count) {
    const T* a = source + at[0];
    T* b = target + at[1];
    if (walk.step[0] == 1 && walk.step[1] == 1) {
      if (ahead != 0) prefetch_row(a + ahead, count);
      std::memcpy(b, a, static_cast<std::size_t>(count) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < count; ++i) b[i * walk.step[1]] = a[i * walk.step[0]];
    }
  });
}

void copy_same(const Tensor& from, Tensor& to) {
  const Walk<2> walk({&from, &to});
  const std::size_t size = size_of(from.dtype());
  if (HWY_DYNAMIC_DISPATCH(transpose_kernel)(walk, size, from.raw(), to.raw())) return;
  switch (size) {
    case 1: return copy_bits<std::uint8_t>(walk, from.raw(), to.raw());
    case 2: return copy_bits<std::uint16_t>(walk, from.raw(), to.raw());
    case 4: return copy_bits<std::uint32_t>(walk, from.raw(), to.raw());
    default: return copy_bits<std::uint64_t>(walk, from.raw(), to.raw());
  }
}

// Towards zero, and no further than To reaches; NaN is 0. What C++ leaves undefined is what a GPU
// does.
template <class To>
To to_integer(float value) {
  using Limits = std::numeric_limits<To>;
  if (std::isnan(value)) return 0;
  if (value <= static_cast<float>(Limits::min())) return Limits::min();
  if (value >= static_cast<float>(Limits::max())) return Limits::max();
  return static_cast<To>(value);
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_class_v<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_class_v<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_same_v<From, float> && !std::is_same_v<To, bool>) {
    return to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// Where one of the two counts or is a truth value: rare, and never long.
void copy_converted(const Tensor& from, Tensor& to) {
  const Walk<2> walk({&from, &to});
  dispatch_all(from.dtype(), [&]<class From>() {
    dispatch_all(to.dtype(), [&]<class To>() {
      const From* source = from.data<From>();
      To* target = to.data<To>();
      for_each_run(walk, [&](const auto& at, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          target[at[1] + i * walk.step[1]] = convert<To>(source[at[0] + i * walk.step[0]]);
        }
      });
    });
  });
}

}  // namespace

void copy(const Tensor& from, Tensor& to) {
  if (from.numel() == 0) return;
  settle_target();
  if (from.dtype() == to.dtype()) {
    copy_same(from, to);
  } else if (is_floating(from.dtype()) && is_floating(to.dtype())) {
    HWY_DYNAMIC_DISPATCH(convert_kernel)(from, to);
  } else {
    copy_converted(from, to);
  }
}

void store_rows(const Tensor& x, const Tensor& at, Tensor& data) {
  const std::int64_t first = *at.data<std::int64_t>();
  if (first < 0 || first > data.size(2) - x.size(2)) return;
  const std::int64_t strides[] = {data.stride(0), data.stride(1), data.stride(2), data.stride(3)};
  Tensor rows = data.view(x.shape(), strides, first * data.stride(2));
  copy(x, rows);
}

}  // namespace qkv::cpu
#endif

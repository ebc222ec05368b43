// Tiles and products of a warp on elements of 16 bits, D[16, 8] += A[16, 16] B[16, 8]: operands are
// read by ldmatrix, and accumulators are the next product's A where they lie.
#pragma once

#include "cuda/elements.cuh"
#include "cuda/tile/finite.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/warp_tile.cuh"

namespace qkv::cuda {

// kSize is 64, 128 or 256. Vectors of 16 bytes change places within 128 bytes by the number of
// their row, so that the 8 rows of a column of vectors, which ldmatrix reads at once, lie in
// different banks.
template <class T, int kSize>
struct WarpTile {
  static constexpr int kVectors = kSize / 8;
  static_assert(kSize == 64 || kSize == 128 || kSize == 256);
  T* data;

  __device__ static int swizzle(int row) { return row & 7; }
  __device__ uint4* vector(int row, int v) const {
    return reinterpret_cast<uint4*>(data + row * kSize + (v ^ swizzle(row)) * 8);
  }
  // kRows rows of `size` elements, `apart` from each other; zeros beyond `size`, and in the place
  // of rows at `count` and beyond.
  template <int kRows, int kThreads>
  __device__ void load(const T* from, std::int64_t apart, int count, int size) const {
    share_vectors<kRows, kVectors, kThreads>([&](int row, int v) {
      const bool present = row < count && 8 * v < size;
      copy_later(vector(row, v), present ? from + row * apart + 8 * v : from, present);
    });
  }
  // Rows lie as the left operand of a product wants them.
  template <int kRows, int kThreads>
  __device__ void pack_left() const {}
  // Whether what this thread has loaded is all finite.
  template <int kRows, int kThreads>
  __device__ bool is_all_tame() const {
    bool tame = true;
    share_vectors<kRows, kVectors, kThreads>(
        [&](int row, int v) { tame &= all_finite<T>(*vector(row, v)); });
    return tame;
  }
  // Zeros in the place of NaN and Inf.
  template <int kRows, int kThreads>
  __device__ void clean() const {
    share_vectors<kRows, kVectors, kThreads>(
        [&](int row, int v) { *vector(row, v) = only_finite<T>(*vector(row, v)); });
  }
};

// Where a lane reads in such tiles: bytes from the first of 16 rows, of the first two vectors. With
// the number of a vector that is exclusive or, so it is with 32 bytes for every two of them: below
// the bytes of a row no bit is shared.
template <class T, int kSize>
struct LaneReader {
  std::uint32_t left, right, values;

  __device__ LaneReader() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto offset = [](int row, int v) {
      return static_cast<std::uint32_t>(2 * row * kSize +
                                        (v ^ WarpTile<T, kSize>::swizzle(row)) * 16);
    };
    left = values = offset(lane % 16, lane / 16);
    right = offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }
  // Vectors 2 c and 2 c + 1 of the 16 rows from `row` on, a multiple of 16.
  __device__ static std::uint32_t address(const WarpTile<T, kSize>& tile, int row, int c,
                                          std::uint32_t lane) {
    return shared_address(tile.data) + 2 * row * kSize +
           (lane ^ static_cast<std::uint32_t>(32 * c));
  }
  // Of the kSize / 4 sums that a lane has of a row: where the n-th lies among the accumulators of
  // its block (that of the other row is two further on), and its column.
  __device__ static int sum_index(int n) { return n / 2 * 4 + n % 2; }
  __device__ static int sum_column(int n) {
    return n / 2 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4) + n % 2;
  }
};

// to += rows [first, first + 16 kBlocks) of `left` times those of `right`, kColumns of them, over
// columns [16 c, 16 c + 16).
template <int kBlocks, int kColumns, bool, class T, int kSize>
__device__ void multiply_rows(const LaneReader<T, kSize>& lane, int c,
                              const WarpTile<T, kSize>& left, int first,
                              const WarpTile<T, kSize>& right,
                              Accumulators<kBlocks, kColumns>& to) {
  std::uint32_t a[kBlocks][4];
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) {
    load_matrices(a[m], lane.address(left, first + 16 * m, c, lane.left));
  }
#pragma unroll
  for (int n = 0; n < kColumns / 16; ++n) {
    std::uint32_t b[4];
    load_matrices(b, lane.address(right, 16 * n, c, lane.right));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        mma<T>(&to[m][8 * n + 4 * half], a[m], b[2 * half], b[2 * half + 1]);
      }
    }
  }
}

// Two neighbours, the first in the low half.
template <class T>
__device__ std::uint32_t as_pair(float first, float second) {
  const T two[2] = {from_float<T>(first), from_float<T>(second)};
  return *reinterpret_cast<const std::uint32_t*>(two);
}

// sums += weights [16 kBlocks, kColumns] times rows [0, kColumns) of `values`, which have `size`
// columns.
template <int kBlocks, int kColumns, class T, int kSize>
__device__ void add_products(const LaneReader<T, kSize>& lane,
                             const Accumulators<kBlocks, kColumns>& weights,
                             const WarpTile<T, kSize>& values, int size,
                             Accumulators<kBlocks, kSize>& sums) {
#pragma unroll
  for (int k = 0; k < kColumns / 16; ++k) {
    std::uint32_t a[kBlocks][4];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        a[m][e] = as_pair<T>(weights[m][8 * k + 2 * e], weights[m][8 * k + 2 * e + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kSize / 16; ++n) {
      if (is_padding<kSize>(n, size)) break;
      std::uint32_t b[4];
      load_matrices_transposed(b, lane.address(values, 16 * k, n, lane.values));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          mma<T>(&sums[m][8 * n + 4 * half], a[m], b[2 * half], b[2 * half + 1]);
        }
      }
    }
  }
}

// Such sums of one row of the lane (half 0 or 1) times `factor`, to `row`, which has `size`
// columns, a multiple of 8.
template <class T, int kSize>
requires(sizeof(T) == 2) __device__
    void store_sums(const float (&sums)[kSize / 2], int half, float factor, T* row, int size) {
#pragma unroll
  for (int n = 0; n < kSize / 8; ++n) {
    const int column = LaneReader<T, kSize>::sum_column(2 * n);
    const float* const from = &sums[4 * n + 2 * half];
    if (column < size) {
      *reinterpret_cast<std::uint32_t*>(row + column) =
          as_pair<T>(factor * from[0], factor * from[1]);
    }
  }
}

}  // namespace qkv::cuda

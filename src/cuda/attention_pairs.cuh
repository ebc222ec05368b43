// What the contract does to single pairs, on the accumulators of a warp: softcap, biases, who sees
// whom, dropout. Options are asked for once per block of accumulators, never per pair, and who is
// seen and what is kept are words of one bit per pair.
#pragma once

#include "cuda/attention_job.cuh"
#include "cuda/tile/mask.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/tile/warp_tile.cuh"

namespace qkv::cuda {

// Whether scores are more than a product times a scale.
__device__ inline bool changes_scores(const AttentionJob& job) {
  return job.softcap > 0 || job.bias.data != nullptr || job.slopes != nullptr ||
         job.table != nullptr;
}
// Whether pairs may be hidden that lie within the interval their row sees.
__device__ inline bool hides_pairs(const AttentionJob& job) {
  return job.allowed.data != nullptr || job.bias.data != nullptr;
}

// A tile [kQueries][kKeys] of what a tensor [B, H, Sq, Sk] says of pairs, in shared memory, so that
// it arrives while something else is done. Rows are padded: lanes of 8 of them, which read at
// once, then find different banks.
template <class E, int kQueries, int kKeys>
struct PairTile {
  static constexpr int kEach = 16 / static_cast<int>(sizeof(E)), kPitch = kKeys + kEach;
  static constexpr int kBytes = kQueries * kPitch * static_cast<int>(sizeof(E));
  E* data;

  // Queries and keys that do not exist become zeros.
  template <int kThreads>
  __device__ void load(const Rows& from, const Sequence& s, int head, int query, int key) const {
    share_vectors<kQueries, kKeys / kEach, kThreads>([&](int row, int v) {
      const bool present = query + row < s.q_rows && key + v * kEach < s.k_rows;
      const E* const at = from.at<const E>(s.q_batch, head, present ? query + row : 0);
      copy_later(data + row * kPitch + v * kEach, at + (present ? key + v * kEach : 0), present);
    });
  }
};

// Where such tiles of a block of pairs begin.
struct StagedPairs {
  const void* bias = nullptr;
  const void* allowed = nullptr;
};

// Two tiles each of the bias and of the mask, as far as the call has them: the one at hand and the
// next.
template <int kQueries, int kKeys>
struct PairStages {
  using BiasTile = PairTile<std::uint16_t, kQueries, kKeys>;
  using MaskTile = PairTile<std::uint8_t, kQueries, kKeys>;

  static int bytes(const AttentionJob& job) {
    return 2 * ((job.bias.data != nullptr ? BiasTile::kBytes : 0) +
                (job.allowed.data != nullptr ? MaskTile::kBytes : 0));
  }

  char* room;

  __device__ BiasTile bias(int stage) const {
    return {reinterpret_cast<std::uint16_t*>(room + stage * BiasTile::kBytes)};
  }
  __device__ MaskTile mask(const AttentionJob& job, int stage) const {
    const int before = job.bias.data != nullptr ? 2 * BiasTile::kBytes : 0;
    return {reinterpret_cast<std::uint8_t*>(room + before + stage * MaskTile::kBytes)};
  }
  template <int kThreads>
  __device__ void load(const AttentionJob& job, const Sequence& s, int head, int query, int key,
                       int stage) const {
    if (job.bias.data != nullptr) {
      bias(stage).template load<kThreads>(job.bias, s, head, query, key);
    }
    if (job.allowed.data != nullptr) {
      mask(job, stage).template load<kThreads>(job.allowed, s, head, query, key);
    }
  }
  // From query `query` and key `key` of the tile on.
  __device__ StagedPairs at(const AttentionJob& job, int stage, int query, int key) const {
    StagedPairs staged;
    if (job.bias.data != nullptr) staged.bias = bias(stage).data + query * BiasTile::kPitch + key;
    if (job.allowed.data != nullptr) {
      staged.allowed = mask(job, stage).data + query * MaskTile::kPitch + key;
    }
    return staged;
  }
};

// Of the 16 rows of a block of accumulators, the lane's first (half 0) and second.
__device__ inline int lane_row(int half) {
  return static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half;
}

// Of a lane's accumulators of a block [16, kColumns], one bit each, for each of its two rows: bit n
// is column 8 (n / 2) + 2 (lane % 4) + n % 2.
struct PairBits {
  std::uint32_t of[2];
};

// Where a block of accumulators lies: rows are queries and columns keys, or the other way round.
// kTileKeys are those of the tiles (PairTile) in which bias and mask are staged; 0: they are read
// from memory.
template <bool kOfKeys, int kColumns, int kTileKeys = 0>
struct PairBlock {
  static constexpr bool kByKeys = kOfKeys;
  static constexpr int kEach = kColumns / 4;  // pairs of a lane in a row
  static constexpr std::uint32_t kAll = (1u << kEach) - 1;
  static_assert(kEach < 32);

  int sequence, head;
  int row, column;  // of its first pair
  StagedPairs staged{};

  __device__ static int lane_column(int n) {
    return n / 2 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4) + n % 2;
  }
  __device__ int query(int r, int n) const {
    return kOfKeys ? column + lane_column(n) : row + lane_row(r);
  }
  __device__ int key(int r, int n) const {
    return kOfKeys ? row + lane_row(r) : column + lane_column(n);
  }
  // Visits the lane's accumulators: visit(x, row, bit).
  template <class Visit>
  __device__ __forceinline__ static void each(float (&x)[kColumns / 2], Visit visit) {
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) visit(x[n / 2 * 4 + 2 * r + n % 2], r, n);
    }
  }
  __device__ __forceinline__ static void keep_only(float (&x)[kColumns / 2], const PairBits& bits,
                                                   float other) {
    each(x, [&](float& value, int r, int n) {
      if ((bits.of[r] >> n & 1) == 0) value = other;
    });
  }

  // What the rows see, as intervals of columns.
  __device__ PairBits seen_in(const KeyRange (&seen)[2]) const {
    const int first = column + lane_column(0);
    return {{(keys_before(seen[0].end - first) & ~keys_before(seen[0].begin - first)) & kAll,
             (keys_before(seen[1].end - first) & ~keys_before(seen[1].begin - first)) & kAll}};
  }
  // Takes out what a mask of pairs hides.
  __device__ void apply_mask(const AttentionJob& job, const Sequence& s, PairBits& bits) const {
    if (job.allowed.data == nullptr) return;
    std::uint32_t allowed[2] = {};
    read<bool>(job.allowed, s, staged.allowed,
               [&](bool is, int r, int n) { allowed[r] |= static_cast<std::uint32_t>(is) << n; });
    bits.of[0] &= allowed[0];
    bits.of[1] &= allowed[1];
  }
  // Takes out what a bias of -inf hides, before it is added.
  __device__ void apply_bias(const AttentionJob& job, const Sequence& s, PairBits& bits) const {
    if (job.bias.data == nullptr) return;
    const auto hide = [&](auto value, int r, int n) {
      if (to_float(value) == -kInfinity) bits.of[r] &= ~(1u << n);
    };
    switch (job.bias_dtype) {
      case DType::bf16: return read<device_bf16>(job.bias, s, staged.bias, hide);
      case DType::f16: return read<device_f16>(job.bias, s, staged.bias, hide);
      default: return read<float>(job.bias, s, staged.bias, hide);
    }
  }

  // From products to scores: softcap here, biases below. `slopes`, if there is a block of them, is
  // multiplied by the derivative of the softcap.
  template <bool kExact>
  __device__ __forceinline__ static void scale_scores(const AttentionJob& job,
                                                      float (&x)[kColumns / 2],
                                                      float (*slopes)[kColumns / 2] = nullptr) {
    if (job.softcap == 0) {
      each(x, [&](float& score, int, int) { score *= job.scale; });
      return;
    }
    constexpr float kLargeCap = 64;
    if constexpr (kExact) {
      cap_scores(job, x, slopes, [](float y) { return tanhf(y); });
    } else if (job.softcap > kLargeCap) {
      cap_scores(job, x, slopes, tanh_close);
    } else {
      cap_scores(job, x, slopes, tanh_fast);
    }
  }
  // A bias of -inf hides its pair.
  __device__ __forceinline__ void add_bias(const AttentionJob& job, const Sequence& s,
                                           float (&x)[kColumns / 2], PairBits& bits) const {
    if (job.bias.data != nullptr) {
      switch (job.bias_dtype) {
        case DType::bf16: return add_tensor<device_bf16>(job, s, x, bits);
        case DType::f16: return add_tensor<device_f16>(job, s, x, bits);
        default: return add_tensor<float>(job, s, x, bits);
      }
    }
    if (job.slopes == nullptr && job.table == nullptr) return;
    // Of the lane's first pair, and what a step along rows and columns does to it.
    const int relative = key(0, 0) - query(0, 0) - static_cast<int>(s.offset);
    constexpr int kRow = kOfKeys ? 8 : -8, kColumn = kOfKeys ? -1 : 1;
    const auto distance = [&](int r, int n) {
      return relative + r * kRow + (n / 2 * 8 + n % 2) * kColumn;
    };
    if (job.slopes != nullptr) {
      const float slope = job.slopes[sequence * job.slopes_batch + head * job.slopes_head];
      each(x, [&](float& score, int r, int n) {
        score = fmaf(-slope, static_cast<float>(abs(distance(r, n))), score);
      });
      return;
    }
    const float* const table = job.diagonal + std::int64_t{head} * (2 * job.bucket_reach + 1);
    each(x, [&](float& score, int r, int n) {
      score += table[min(max(distance(r, n) + job.bucket_reach, 0), 2 * job.bucket_reach)];
    });
  }

  // Which pairs dropout keeps. `row` is a multiple of 16; `column` of 32 for keys, 16 for queries.
  __device__ __forceinline__ PairBits kept(const PairDropout& dropout) const {
    // Of a draw: what it says of two of the lane's queries and of keys 8 apart.
    constexpr int kQueries = 2, kKeys = kOfKeys ? 2 : 4,
                  kColumnsOfDraw = kOfKeys ? kQueries : kKeys;
    PairBits bits{};
#pragma unroll 1
    for (int n = 0; n < kEach; n += 2 * kColumnsOfDraw) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint4 words = dropout.draw(sequence, head, query(0, n + e), key(0, n + e));
        const bool second = kOfKeys && row / 16 % 2 != 0;  // half of 32 keys
        const std::uint32_t found[4] = {second ? words.z : words.x, second ? words.w : words.y,
                                        words.z, words.w};
#pragma unroll
        for (int k = 0; k < kKeys; ++k) {
          const std::uint32_t compared = dropout.compare(found[k]);
#pragma unroll
          for (int q = 0; q < kQueries; ++q) {
            const int r = kOfKeys ? k : q, column_of_draw = kOfKeys ? q : k;
            bits.of[r] |= (compared >> (15 + 16 * q) & 1) << (n + 2 * column_of_draw + e);
          }
        }
      }
    }
    return bits;
  }

 private:
  template <class Tanh>
  __device__ __forceinline__ static void cap_scores(const AttentionJob& job,
                                                    float (&x)[kColumns / 2],
                                                    float (*slopes)[kColumns / 2], Tanh tanh_of) {
    const float inner = job.scale / job.softcap;
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      const float tanh = tanh_of(x[i] * inner);
      x[i] = job.softcap * tanh;
      if (slopes != nullptr) (*slopes)[i] *= 1 - tanh * tanh;
    }
  }

  template <class B>
  __device__ __forceinline__ void add_tensor(const AttentionJob& job, const Sequence& s,
                                             float (&x)[kColumns / 2], PairBits& bits) const {
    read<B>(job.bias, s, staged.bias, [&](B value, int r, int n) {
      const float bias = to_float(value);
      x[n / 2 * 4 + 2 * r + n % 2] += bias;
      if (bias == -kInfinity) bits.of[r] &= ~(1u << n);
    });
  }

  // Reads what [B, H, Sq, Sk] `from` says of each pair: visit(value, row, bit). Pairs that do not
  // exist get the value of some other.
  template <class B, class Visit>
  __device__ __forceinline__ void read(const Rows& from, const Sequence& s, const void* tile,
                                       Visit visit) const {
    if constexpr (kTileKeys > 0) {
      constexpr int kPitch = kTileKeys + 16 / static_cast<int>(sizeof(B));
      constexpr int kDown = kOfKeys ? 1 : kPitch, kRight = kOfKeys ? kPitch : 1;
      const B* const at =
          static_cast<const B*>(tile) + lane_row(0) * kDown + lane_column(0) * kRight;
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) visit(at[8 * r * kDown + (n / 2 * 8 + n % 2) * kRight], r, n);
      }
      return;
    }
    const int rows = kOfKeys ? s.k_rows : s.q_rows, columns = kOfKeys ? s.q_rows : s.k_rows;
    if (row + 16 > rows || column + kColumns > columns) {
#pragma unroll
      for (int n = 0; n < kEach; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int i = min(query(r, n), s.q_rows - 1), j = min(key(r, n), s.k_rows - 1);
          visit(from.at<const B>(s.q_batch, head, i)[j * from.element], r, n);
        }
      }
      return;
    }
    const B* const first =
        from.at<const B>(s.q_batch, head, query(0, 0)) + key(0, 0) * from.element;
    const std::int64_t down = kOfKeys ? from.element : from.row;
    const std::int64_t right = kOfKeys ? from.row : from.element;
    struct alignas(2 * sizeof(B)) Two {
      B x, y;
    };
    const bool by_two =
        right == 1 && reinterpret_cast<std::uintptr_t>(first) % sizeof(Two) == 0 && down % 2 == 0;
    if (!kOfKeys && __all_sync(0xffffffff, by_two)) {
#pragma unroll
      for (int n = 0; n < kEach; n += 2) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Two two = *reinterpret_cast<const Two*>(first + 8 * r * down + 4 * n);
          visit(two.x, r, n);
          visit(two.y, r, n + 1);
        }
      }
      return;
    }
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) visit(first[8 * r * down + (n / 2 * 8 + n % 2) * right], r, n);
    }
  }
};

}  // namespace qkv::cuda

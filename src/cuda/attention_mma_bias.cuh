// Gradients of biases by matrix instructions: ds of a tile of 64 x 64 pairs is made again from q .
// k and dout . v. Nothing is multiplied by it, so what is hidden is not felt. Blocks own what they
// write, so sums have one order.
#pragma once

#include "cuda/attention_mma_gradient.cuh"

namespace qkv::cuda {

inline constexpr int kBiasWarps = 4, kBiasThreads = 32 * kBiasWarps;
inline constexpr int kBiasPairs = 64;  // queries of a tile, 16 for each warp, and keys

template <class T, int kSize>
struct BiasTiles {
  static constexpr int kBytes = 4 * kBiasPairs * kSize * static_cast<int>(sizeof(T));
  using Tile = WarpTile<T, kSize>;
  using Sums = Accumulators<1, kBiasPairs>;
  using Pairs = PairBlock<false, kBiasPairs>;

  const AttentionJob& job;
  const MmaBackward& x;
  Tile q, dout, k, v;
  LaneReader<T, kSize> lane;
  int sequence = 0, head = 0, row = 0;  // of the queries at hand
  bool packed = false;                  // for the left side of a product
  float terms[kTerms<T>][2] = {};

  __device__ BiasTiles(const AttentionJob& attention, const MmaBackward& backward, T* room)
      : job(attention),
        x(backward),
        q{room},
        dout{q.data + kBiasPairs * kSize},
        k{dout.data + kBiasPairs * kSize},
        v{k.data + kBiasPairs * kSize} {}

  // Before: nobody needs the last ones.
  __device__ void load_queries(int of_sequence, const Sequence& s, int of_head, int first) {
    sequence = of_sequence, head = of_head, row = first, packed = false;
    const int count = min(s.q_rows, s.q_seeing) - first;
    load(q, job.q, s.q_batch, head, s.q_start + first, count, job.head_size);
    load(dout, x.tensors.dout, s.q_batch, head, s.q_start + first, count, job.value_size);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = first + 16 * warp_number() + lane_row(r);
      const std::int64_t at = job.lse_row(s, head, min(i, s.q_rows - 1));
      terms[kShift][r] = x.shift[at];
      terms[kBase][r] = x.rows.base[at];
      terms[kShare][r] = x.rows.share[at];
    }
  }
  // ds of the warp's 16 queries and of keys key ..; hidden pairs and those that do not exist are 0.
  __device__ void make(const Sequence& s, const BandMask& band, int key, Sums& ds) {
    const int count = min(s.k_rows, s.k_visible) - key;
    load(k, job.k, s.k_batch, head / job.group, s.k_start + key, count, job.head_size);
    load(v, job.v, s.k_batch, head / job.group, s.k_start + key, count, job.value_size);
    end_group();
    wait_for_groups<0>();
    __syncthreads();
    if (!kHalves<T> && !packed) {
      q.template pack_left<kBiasPairs, kBiasThreads>();
      dout.template pack_left<kBiasPairs, kBiasThreads>();
      packed = true;
      __syncthreads();
    }
    Sums p;
    const int mine = 16 * warp_number();
    multiply_all<1, kBiasPairs>(lane, q, mine, k, job.head_size, p);
    multiply_all<1, kBiasPairs>(lane, dout, mine, v, job.value_size, ds);
    __syncthreads();  // nobody needs keys and values any more
    const Pairs pairs{sequence, head, row + mine, key};
    PairGradient<T, Pairs, kBiasPairs> gradient{job, s, pairs};
    gradient.see(rows_seen(band, s, row + mine).of);
    const auto terms_of = [&](int term, int, float(&to)[2][2]) {
      to[0][0] = to[0][1] = terms[term][0], to[1][0] = to[1][1] = terms[term][1];
    };
    gradient.make(p[0], ds[0], terms_of, false);
  }

 private:
  __device__ static void load(const Tile& to, const Rows& from, int batch, int head, int row,
                              int count, int size) {
    to.template load<kBiasPairs, kBiasThreads>(from.at<const T>(batch, head, row), from.row, count,
                                               size);
  }
};

// dbias [B or 1, H or 1, Sq, Sk]: a block has a tile of it.
template <class T, int kSize>
__global__ void __launch_bounds__(kBiasThreads)
    mma_tensor_kernel(const __grid_constant__ AttentionJob job,
                      const __grid_constant__ MmaBackward x, BiasResult to, int sequences) {
  extern __shared__ __align__(128) char room[];
  BiasTiles<T, kSize> tiles(job, x, reinterpret_cast<T*>(room));
  const int b0 = static_cast<int>(blockIdx.z) / to.heads,
            h0 = static_cast<int>(blockIdx.z) % to.heads;
  const int row = static_cast<int>(blockIdx.y) * kBiasPairs,
            key = static_cast<int>(blockIdx.x) * kBiasPairs;
  Accumulators<1, kBiasPairs> sums = {};
#pragma unroll 1
  for (int b = b0; b < sequences; b += to.batch) {
    const Sequence s = job.sequences[b];
    const BandMask band = band_of(job, s);
    const int last = min(row + kBiasPairs, s.q_seeing) - 1;
    if (row > last || !meet(band.of_some(row, last), key, key + kBiasPairs)) continue;
#pragma unroll 1
    for (int h = h0; h < job.heads; h += to.heads) {
      tiles.load_queries(b, s, h, row);
      Accumulators<1, kBiasPairs> ds;
      tiles.make(s, band, key, ds);
#pragma unroll
      for (int i = 0; i < kBiasPairs / 2; ++i) sums[0][i] += ds[0][i];
    }
  }
  using Pairs = PairBlock<false, kBiasPairs>;
  const Pairs pairs{0, 0, row + 16 * warp_number(), key};
  Pairs::each(sums[0], [&](float& sum, int r, int n) {
    const int i = pairs.query(r, n), j = pairs.key(r, n);
    if (i < to.rows && j < to.keys) {
      to.data[((std::int64_t{b0} * to.heads + h0) * to.rows + i) * to.keys + j] = sum;
    }
  });
}

// Sums of ds over what 64 rows of a head see, by bucket: partial[sequence][head][tile][bucket]. A
// thread has its own column of sums. Slopes are one bucket in which ds counts -|distance| times.
// Pairs of which x.far holds sums are left out.
template <class T, int kSize>
__global__ void __launch_bounds__(kBiasThreads)
    mma_diagonal_kernel(const __grid_constant__ AttentionJob job,
                        const __grid_constant__ MmaBackward x, int bucket_count, float* partial) {
  extern __shared__ __align__(128) char room[];
  using Pairs = PairBlock<false, kBiasPairs>;
  BiasTiles<T, kSize> tiles(job, x, reinterpret_cast<T*>(room));
  auto* const columns = reinterpret_cast<float*>(room + BiasTiles<T, kSize>::kBytes);
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z);
  const int row = static_cast<int>(blockIdx.x) * kBiasPairs;
  const Sequence s = job.sequences[sequence];
  const BandMask band = band_of(job, s);
  for (int b = 0; b < bucket_count; ++b) columns[b * kBiasThreads + thread] = 0;
  const auto add = [&](int bucket, float value) {
    columns[bucket * kBiasThreads + thread] += value;
  };
  const int last = min(row + kBiasPairs, s.q_seeing) - 1;
  KeyRange keys = row <= last ? band.of_some(row, last) : KeyRange{0, 0};
  const bool near_only = x.far.hold();
  const int reach = job.slopes != nullptr ? 0 : job.bucket_reach;
  if (near_only) {
    keys.begin = max(keys.begin, row + band.offset - reach + 1);
    keys.end = min(keys.end, last + band.offset + reach);
  }
  // None are from 0 on, since a tile begins where it is aligned.
  if (keys.begin >= keys.end || (near_only && reach == 0)) keys = {0, 0};
  if (keys.begin < keys.end) tiles.load_queries(sequence, s, head, row);
#pragma unroll 1
  for (int key = keys.begin / kKeysAligned * kKeysAligned; key < keys.end; key += kBiasPairs) {
    Accumulators<1, kBiasPairs> ds;
    tiles.make(s, band, key, ds);
    const Pairs pairs{sequence, head, row + 16 * warp_number(), key};
    const auto relative = [&](int r, int n) {
      return pairs.key(r, n) - pairs.query(r, n) - static_cast<int>(s.offset);
    };
    if (job.slopes != nullptr) {
      float sum = 0;
      Pairs::each(ds[0], [&](float& value, int r, int n) {
        sum -= value * static_cast<float>(abs(relative(r, n)));
      });
      add(0, sum);
      continue;
    }
    // Far from the diagonal all pairs are in one bucket: buckets grow with the distance.
    const int low = relative(1, 0), high = relative(0, Pairs::kEach - 1);
    if (!near_only && low > 0 == high > 0 && bucket_of(job, low) == bucket_of(job, high)) {
      float sum = 0;
      Pairs::each(ds[0], [&](float& value, int, int) { sum += value; });
      add(bucket_of(job, low), sum);
      continue;
    }
    // By distance first: a lane's two rows are eight apart, and so are its pairs of columns.
    constexpr int kSteps = Pairs::kEach / 2 + 1;
    float sums[kSteps][2] = {};
    Pairs::each(ds[0], [&](float& value, int r, int n) { sums[n / 2 + 1 - r][n % 2] += value; });
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int distance = low + 8 * step + n;
        if (near_only && abs(distance) >= reach) continue;
        add(bucket_of(job, distance), sums[step][n]);
      }
    }
  }
  __syncthreads();
  float* const to =
      partial +
      ((std::int64_t{sequence} * job.heads + head) * gridDim.x + blockIdx.x) * bucket_count;
  for (int b = thread / 32; b < bucket_count; b += kBiasWarps) {
    float sum = 0;
    for (int t = thread % 32; t < kBiasThreads; t += 32) sum += columns[b * kBiasThreads + t];
    sum = warp_sum(sum);
    if (thread % 32 == 0) to[b] = sum;
  }
}

template <class T>
void launch_mma_bias(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                     const BiasResult& to, cudaStream_t stream) {
  dispatch_size<T>(std::max(job.head_size, job.value_size), [&]<class U, int kSize>() {
    constexpr int kBytes = BiasTiles<U, kSize>::kBytes;
    auto* const kernel = mma_tensor_kernel<U, kSize>;
    allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
    const dim3 blocks(AttentionGrid::tiles(to.keys, kBiasPairs),
                      AttentionGrid::tiles(to.rows, kBiasPairs),
                      static_cast<unsigned>(to.batch * to.heads));
    kernel<<<blocks, kBiasThreads, kBytes, stream>>>(job, x, to, static_cast<int>(grid.sequences));
  });
}

template <class T>
void launch_mma_diagonal(const AttentionJob& job, const AttentionGrid& grid, const MmaBackward& x,
                         int buckets, float* partial, cudaStream_t stream) {
  dispatch_size<T>(std::max(job.head_size, job.value_size), [&]<class U, int kSize>() {
    const int bytes =
        BiasTiles<U, kSize>::kBytes + buckets * kBiasThreads * static_cast<int>(sizeof(float));
    auto* const kernel = mma_diagonal_kernel<U, kSize>;
    allow_shared(reinterpret_cast<const void*>(kernel), bytes);
    const dim3 blocks(grid.row_tiles(kBiasPairs), static_cast<unsigned>(job.heads), grid.sequences);
    kernel<<<blocks, kBiasThreads, bytes, stream>>>(job, x, buckets, partial);
  });
}

}  // namespace qkv::cuda

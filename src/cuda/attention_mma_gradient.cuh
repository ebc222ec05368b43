// The gradient of a block of scores, from the two products it is made of and what is known of rows.
#pragma once

#include "cuda/attention_mma.cuh"
#include "cuda/norm.cuh"

namespace qkv::cuda {

// What p and ds of a query are made of: p = e^(s - shift) share, or 2^(scale s - shift) where
// scores are only scaled and products rounded, and ds = p (dp + base).
enum Term : int { kShift, kBase, kShare };
template <class T>
inline constexpr int kTerms = kPairOptions<T> ? 3 : 2;

// A weight without its share is at most 1, however its exponent was rounded. NaN stays NaN.
__device__ inline float at_most_0(float exponent) {
  asm("min.NaN.f32 %0, %0, 0f00000000;" : "+f"(exponent));
  return exponent;
}
__device__ inline float weight_of(float exponent) { return exp2_fast(at_most_0(exponent)); }

// Of the accumulators of a block [16, kColumns] of pairs.
template <class T, class Pairs, int kColumns>
struct PairGradient {
  const AttentionJob& job;
  const Sequence& s;
  const Pairs& pairs;
  PairBits bits{{Pairs::kAll, Pairs::kAll}};
  bool sees_all = true;

  // Unless this is called, all rows see all columns.
  __device__ __forceinline__ void see(const KeyRange (&seen)[2]) {
    sees_all = false;
    bits = pairs.seen_in(seen);
    if constexpr (kPairOptions<T>) pairs.apply_mask(job, s, bits);
  }

  // From q . k and dout . v to the weights that multiply dout (not yet by dropout.kept), and to ds:
  // of the products before a softcap (`through_softcap`), or of what is added after it.
  // terms_of(term, i, to) tells a term of columns 8 i + 2 (lane % 4) and the next, for both rows.
  template <class TermsOf>
  __device__ __forceinline__ void make(float (&p)[kColumns / 2], float (&ds)[kColumns / 2],
                                       TermsOf terms_of, bool through_softcap) {
    const bool drops = kPairOptions<T> && job.has_dropout;
    const bool changes = kPairOptions<T> && changes_scores(job);
    PairBits kept{};
    if (drops) {
      kept = pairs.kept(job.dropout);
      Pairs::each(ds, [&](float& dp, int r, int n) {
        dp = (kept.of[r] >> n & 1) != 0 ? job.dropout.kept * dp : 0.0f;
      });
    }
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      float base[2][2];
      terms_of(kBase, i, base);
#pragma unroll
      for (int e = 0; e < 4; ++e) ds[4 * i + e] += base[e / 2][e % 2];
    }
    const bool has_shares = changes || kExact<T>;
    if (has_shares)
      Pairs::template scale_scores<kExact<T>>(job, p, through_softcap ? &ds : nullptr);
    if (changes) pairs.add_bias(job, s, p, bits);
    const float scale = job.scale * kLog2e;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      float shift[2][2];
      terms_of(kShift, i, shift);
      if (has_shares) {
        float share[2][2];
        terms_of(kTerms<T> - 1, i, share);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& weight = p[4 * i + e];
          const float exponent = weight - shift[e / 2][e % 2];
          const float power = kExact<T> ? expf(at_most_0(exponent)) : weight_of(kLog2e * exponent);
          weight = share[e / 2][e % 2] * power;
        }
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          p[4 * i + e] = weight_of(fmaf(p[4 * i + e], scale, -shift[e / 2][e % 2]));
        }
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) ds[4 * i + e] *= p[4 * i + e];
    }
    if (!sees_all) {
      Pairs::keep_only(p, bits, 0.0f);
      Pairs::keep_only(ds, bits, 0.0f);
    }
    if (Pairs::kByKeys && drops) Pairs::keep_only(p, kept, 0.0f);
  }
};

}  // namespace qkv::cuda

// The gradient of a tile of scores, made again from q, k, v, dout and what is known of the rows.
#pragma once

#include "cuda/attention.h"
#include "cuda/attention_tile.cuh"

namespace qkv::cuda {

// For the 4 x 4 pairs of a thread; hidden pairs hold kHidden in all three.
struct GradientTile {
  Tile weight;  // p through dropout: what multiplies dout in dv
  Tile dscore;  // ds: what a bias gets
  Tile dlogit;  // da: what multiplies k in dq and q in dk
};

struct TilePlace {
  int sequence, head;
  std::int64_t row, key;  // of its first pair
};

// kScores = false leaves out dout . v, and with it dscore and dlogit.
template <class T, bool kScores>
__device__ void gradient_tile(const AttentionJob& job, const Sequence& s, const TilePlace& place,
                              const Rows& dout, const BackwardRows& rows, ProductRoom& room,
                              GradientTile& g) {
  const Lane lane;
  const int key_head = place.head / job.group;
  const auto q = block_of<T>(job.q, s.q_batch, place.head, s.q_start, place.row, s.q_rows);
  const auto k = block_of<T>(job.k, s.k_batch, key_head, s.k_start, place.key, s.k_rows);
  Tile dots, dps;
  product(q, k, job.head_size, room, dots);
  if constexpr (kScores) {
    const auto d = block_of<T>(dout, s.q_batch, place.head, s.q_start, place.row, s.q_rows);
    const auto v = block_of<T>(job.v, s.k_batch, key_head, s.k_start, place.key, s.k_rows);
    product(d, v, job.value_size, room, dps);
  }
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
    const std::int64_t i = place.row + lane.row(r);
    const std::int64_t at = i < s.q_rows ? job.lse_row(s, place.head, i) : 0;
    const float top = rows.top[at], share = rows.share[at];
    float base = 0, dentropy = 0, expected = 0, keep[kSide] = {1, 1, 1, 1};
    if constexpr (kScores) {
      base = rows.base[at];
      if (rows.dentropy != nullptr) {
        dentropy = rows.dentropy[at];
        expected = rows.expected[at];
      }
    }
    if (job.has_dropout) {
      dropout_of(job, place.sequence, place.head, i, place.key + lane.column(0), keep);
    }
#pragma unroll
    for (int c = 0; c < kSide; ++c) {
      const Score pair =
          score_of(job, s, place.sequence, place.head, i, place.key + lane.column(c), dots[r][c]);
      g.weight[r][c] = g.dscore[r][c] = g.dlogit[r][c] = kHidden;
      if (!pair.visible) continue;
      const float p = expf(pair.s - top) * share;
      if (keep[c] != 0) g.weight[r][c] = p * keep[c];
      if constexpr (kScores) {
        const float dp = keep[c] != 0 ? dps[r][c] * keep[c] : 0.0f;
        float more = dp + base;
        if (dentropy != 0) more -= dentropy * (pair.s - expected);
        const float ds = p * more;
        float slope = 1;
        if (job.softcap > 0) {
          const float tanh = tanhf(pair.a / job.softcap);
          slope = 1 - tanh * tanh;
        }
        g.dscore[r][c] = ds;
        g.dlogit[r][c] = ds * slope;
      }
    }
  }
}

}  // namespace qkv::cuda

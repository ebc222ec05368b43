// The forward pass for Hopper GPUs as the host prepares it for a Shape.
#pragma once

#include <algorithm>

#include "cuda/attention_forward_sm90.cuh"
#include "cuda/tile/launch.cuh"

namespace qkv::cuda::forward_sm90 {

inline constexpr char kForwardName[] = "attention_forward";

// All but the statistics.
template <class S>
Params params_of(const Sm90Forward& call) {
  Params p{};
  p.q = make_tensor_map({call.q, call.q_batches, call.heads, call.q_rows, call.head_size,
                         call.q_strides.batch, call.q_strides.head, call.q_strides.row},
                        call.dtype, S::Rows);
  const auto keys = [&](const void* data, const Sm90Strides& strides) {
    return make_tensor_map({data, call.k_batches, call.key_heads, call.k_rows, call.head_size,
                            strides.batch, strides.head, strides.row},
                           call.dtype, S::Keys);
  };
  p.k = keys(call.k, call.k_strides);
  p.v = keys(call.v, call.v_strides);
  p.out_rows =
      make_tensor_map({call.out, call.q_batches, call.heads, call.q_rows, call.head_size,
                       call.out_strides.batch, call.out_strides.head, call.out_strides.row},
                      call.dtype, 16);
  p.out = call.out;
  p.values = call.v;
  p.lse = call.lse;
  p.sinks = call.sinks;
  p.out_strides = call.out_strides;
  p.v_strides = call.v_strides;
  p.sequences = call.sequences;
  p.all_alike = call.all_alike;
  p.ticket = call.ticket;
  p.heads = int(call.heads);
  p.group = int(call.heads / call.key_heads);
  p.head_size = int(call.head_size);
  p.q_rows = int(call.q_rows);
  p.k_rows = int(call.k_rows);
  p.left = window_side(call.left);
  p.right = window_side(call.right);
  p.row_blocks = int((call.longest + S::Rows - 1) / S::Rows);
  p.pairs = int(call.sequence_count * call.heads);
  // Heads at work at a time: those whose keys and values fill half of L2 (which holds 50 MB or
  // more), or up to twice as many, so that no few are left for the end.
  const std::int64_t bytes = 4 * std::max<std::int64_t>(call.k_rows, 1) * call.head_size;
  const std::int64_t key_pairs = std::max<std::int64_t>(call.sequence_count * call.key_heads, 1);
  const std::int64_t fitting =
      std::clamp<std::int64_t>((std::int64_t(24) << 20) / bytes, 1, key_pairs);
  const std::int64_t sections = key_pairs / fitting;
  p.pairs_at_once = int((key_pairs + sections - 1) / sections) * p.group;
  p.scale = (call.softcap > 0 ? call.softcap : call.scale) * kLog2e;
  p.inner_scale = call.softcap > 0 ? call.scale / call.softcap : 0;
  if constexpr (S::ChangesScores) {
    p.scale = kLog2e;
    p.inner_scale = call.scale;
  }
  if constexpr (S::Pairs != Said::nothing) {
    p.of_pairs = call.pairs;
    p.by_head = call.pairs.batches == 1 && call.pairs.heads > 1;
  }
  if constexpr (S::SaidInTiles) {
    const Sm90Pairs& x = call.pairs;
    p.said = make_tensor_map({x.data, x.batches, x.heads, call.q_rows, call.k_rows, x.strides.batch,
                              x.strides.head, x.strides.row},
                             S::Pairs == Said::mask ? DType::u8 : call.dtype, S::Rows);
  }
  return p;
}

// False if there is nothing to do.
template <class S>
bool launch_blocks(const Params& p, cudaStream_t stream) {
  const std::int64_t works = std::int64_t(p.pairs) * p.row_blocks;
  if (works == 0) return false;

  constexpr int Bytes = sizeof(Shared<S>);
  static_assert(Bytes <= 227 * 1024);
  const auto kernel = attention_forward_kernel<S>;
  allow_shared_bytes(kernel, Bytes, kForwardName);
  const int blocks = int(std::min<std::int64_t>(works, multiprocessors()));
  kernel<<<blocks, S::Threads, Bytes, stream>>>(p);
  return true;
}

}  // namespace qkv::cuda::forward_sm90

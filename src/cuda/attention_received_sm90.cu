// What keys receive on Hopper GPUs as it is called: which tiles it takes. The kernel is in
// attention_received_sm90.cuh.
#include "cuda/attention_received_sm90.h"

#include <algorithm>

#include "cuda/attention_received_sm90.cuh"
#include "cuda/tile/launch.cuh"

namespace qkv::cuda {
namespace {

using namespace received_sm90;

constexpr char kName[] = "attention statistics";

template <class S>
Params params_of(const Sm90Forward& call, const Sm90RowTerms* terms) {
  Params p{};
  p.q = make_tensor_map({call.q, call.q_batches, call.heads, call.q_rows, call.head_size,
                         call.q_strides.batch, call.q_strides.head, call.q_strides.row},
                        call.dtype, S::Rows);
  p.k = make_tensor_map({call.k, call.k_batches, call.key_heads, call.k_rows, call.head_size,
                         call.k_strides.batch, call.k_strides.head, call.k_strides.row},
                        call.dtype, S::Keys);
  p.terms = terms;
  p.to = call.statistics->received;
  p.sequences = call.sequences;
  p.all_alike = call.all_alike;
  p.ticket = call.ticket;
  p.heads = int(call.heads);
  p.group = int(call.heads / call.key_heads);
  p.k_rows = int(call.k_rows);
  p.term_rows = int(sm90_term_rows(call));
  p.left = window_side(call.left);
  p.right = window_side(call.right);
  p.key_blocks = int((call.longest_keys + S::Keys - 1) / S::Keys);
  p.pairs = int(call.sequence_count * call.heads);
  // Heads at work at a time: those whose queries fill half of L2 (which holds 50 MB or more), or up
  // to twice as many, so that no few are left for the end.
  const std::int64_t bytes = 2 * std::max<std::int64_t>(call.longest, 1) * call.head_size;
  const std::int64_t pairs = std::max<std::int64_t>(p.pairs, 1);
  const std::int64_t fitting = std::clamp<std::int64_t>((std::int64_t(24) << 20) / bytes, 1, pairs);
  const std::int64_t sections = pairs / fitting;
  p.pairs_at_once = int((pairs + sections - 1) / sections);
  p.scale = call.scale * kLog2e;
  return p;
}

template <class S>
void launch(const Sm90Forward& call, const Sm90RowTerms* terms, cudaStream_t stream) {
  const Params p = params_of<S>(call, terms);
  const std::int64_t works = std::int64_t(p.pairs) * p.key_blocks;
  if (works == 0) return;
  constexpr int Bytes = sizeof(Shared<S>);
  static_assert(Bytes <= 227 * 1024);
  const auto kernel = attention_received_kernel<S>;
  allow_shared_bytes(kernel, Bytes, kName);
  const int blocks = int(std::min<std::int64_t>(works, multiprocessors()));
  kernel<<<blocks, kThreads, Bytes, stream>>>(p);
  check_status(cudaGetLastError(), kName);
}

// Keys of two Works where there is room: then those of the next come while these are in use.
template <class T>
void launch_sizes(const Sm90Forward& call, const Sm90RowTerms* terms, cudaStream_t stream) {
  if (call.head_size <= 64) return launch<Shape<T, 64, 128, 6, 2>>(call, terms, stream);
  if (call.head_size <= 128) return launch<Shape<T, 128, 128, 4, 1>>(call, terms, stream);
  launch<Shape<T, 256, 64, 3, 1>>(call, terms, stream);
}

}  // namespace

void attention_received_sm90(const Sm90Forward& call, const Sm90RowTerms* terms,
                             cudaStream_t stream) {
  if (call.dtype == DType::bf16)
    launch_sizes<__nv_bfloat16>(call, terms, stream);
  else
    launch_sizes<__half>(call, terms, stream);
}

}  // namespace qkv::cuda

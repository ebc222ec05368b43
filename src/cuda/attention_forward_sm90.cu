// The forward pass for Hopper GPUs as it is called: which tiles it takes, and the statistics of
// heads that follow it. attention_forward_sm90.cuh is the kernel.
#include "cuda/attention_forward_sm90.h"

#include <algorithm>

#include "cuda/attention_forward_sm90.cuh"
#include "cuda/tile/launch.cuh"

namespace qkv::cuda {
namespace {

using namespace forward_sm90;

constexpr char kName[] = "attention_forward";

// ---- Statistics of a head ----------------------------------------------------------------------

// One warp per sequence and head puts the warps' sums together, always in the same order.
__global__ void finish_statistics_kernel(const WarpSums* sums, int count, Sm90Statistics to) {
  const int pair = blockIdx.x;
  double pairs = 0, mean = 0, deviation = 0, rows = 0, entropy = 0, relative = 0, saturated = 0;
  float top = -kInfinity;
  const auto add = [&](double n, double its_mean, double its_deviation) {
    if (n == 0) return;
    const double gap = its_mean - mean;
    deviation += its_deviation + gap * gap * pairs * n / (pairs + n);
    mean += gap * n / (pairs + n);
    pairs += n;
  };
  for (int i = threadIdx.x; i < count; i += 32) {
    const WarpSums one = sums[std::int64_t(pair) * count + i];
    add(one.pairs, one.mean, one.deviation);
    rows += one.rows;
    entropy += one.entropy;
    relative += one.entropy_relative;
    saturated += one.saturated;
    if (!(one.max_logit <= top) && top == top) top = one.max_logit;
  }
  for (int step = 1; step < 32; step *= 2) {
    const auto other = [&](auto x) { return __shfl_down_sync(0xffffffff, x, step); };
    add(other(pairs), other(mean), other(deviation));
    rows += other(rows);
    entropy += other(entropy);
    relative += other(relative);
    saturated += other(saturated);
    const float its_top = other(top);
    if (!(its_top <= top) && top == top) top = its_top;
  }
  if (threadIdx.x != 0) return;
  const double seeing = fmax(rows, 1.0);
  const auto write = [pair](float* where, double value) {
    if (where) where[pair] = float(value);
  };
  write(to.max_logit, top);
  write(to.score_mean, mean);
  write(to.score_var, deviation / fmax(pairs, 1.0));
  write(to.entropy_mean, entropy / seeing);
  write(to.entropy_relative, relative / seeing);
  write(to.saturation, saturated / seeing);
}

// ---- Host --------------------------------------------------------------------------------------

template <class S>
void launch(const Sm90Forward& call, cudaStream_t stream) {
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
  p.out = call.out;
  p.values = call.v;
  p.lse = call.lse;
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
  // Keys and values of as many heads as fit half of L2 (which holds 50 MB or more).
  const std::int64_t bytes = 4 * std::max<std::int64_t>(call.k_rows, 1) * call.head_size;
  p.pairs_at_once =
      int(std::clamp<std::int64_t>((std::int64_t(24) << 20) / bytes, 1, call.key_heads * 64)) *
      p.group;
  p.scale = (call.softcap > 0 ? call.softcap : call.scale) * kLog2e;
  p.inner_scale = call.softcap > 0 ? call.scale / call.softcap : 0;
  if (call.statistics) {
    p.statistics = *call.statistics;
    p.sums = static_cast<WarpSums*>(call.statistics->workspace);
  }
  const std::int64_t works = std::int64_t(p.pairs) * p.row_blocks;
  if (works == 0) return;

  constexpr int Bytes = sizeof(Shared<S>);
  static_assert(Bytes <= 227 * 1024);
  const auto kernel = attention_forward_kernel<S>;
  allow_shared_bytes(kernel, Bytes, kName);
  const int blocks = int(std::min<std::int64_t>(works, multiprocessors()));
  kernel<<<blocks, S::Threads, Bytes, stream>>>(p);
  if (call.statistics)
    finish_statistics_kernel<<<p.pairs, 32, 0, stream>>>(p.sums, p.row_blocks * S::Rows / 16,
                                                         p.statistics);
  check_status(cudaGetLastError(), kName);
}

// Wide tiles where nothing is cut; narrower ones where a diagonal would waste them.
template <class T, Watched What>
void launch_watched(const Sm90Forward& call, cudaStream_t stream) {
  const bool cut = call.left >= 0 || call.right >= 0;
  if (call.head_size <= 64) return launch<Shape<T, 64, 128, 3, 4, false, What>>(call, stream);
  if (call.head_size > 128) return launch<Shape<T, 256, 80, 2, 2, false, What>>(call, stream);
  if (cut) return launch<Shape<T, 128, 128, 2, 2, false, What>>(call, stream);
  launch<Shape<T, 128, 176, 2, 2, false, What>>(call, stream);
}

template <class T>
void launch_softcap(const Sm90Forward& call, cudaStream_t stream) {
  if (call.head_size <= 64) return launch<Shape<T, 64, 128, 3, 2, true>>(call, stream);
  if (call.head_size <= 128) return launch<Shape<T, 128, 128, 2, 2, true>>(call, stream);
  launch<Shape<T, 256, 64, 2, 2, true>>(call, stream);
}

template <class T>
void launch_for(const Sm90Forward& call, cudaStream_t stream) {
  if (call.softcap > 0) return launch_softcap<T>(call, stream);
  if (!call.statistics || !call.statistics->need_a_watch())
    return launch_watched<T, Watched::no>(call, stream);
  if (call.statistics->top_index == nullptr)
    return launch_watched<T, Watched::scores>(call, stream);
  launch_watched<T, Watched::scores_and_keys>(call, stream);
}

}  // namespace

std::int64_t sm90_statistics_workspace(const Sm90Forward& call) {
  // Enough for blocks of rows of any shape.
  return call.sequence_count * call.heads * (call.longest / 16 + 12) *
         std::int64_t(sizeof(WarpSums));
}

const char* why_not_sm90_forward(const Sm90Forward& call) {
  if (call.dtype != DType::bf16 && call.dtype != DType::f16) return "not bf16 or f16";
  if (call.head_size != call.value_size) return "values differ in size from keys";
  if (call.head_size % 8 != 0 || call.head_size < 8 || call.head_size > 256)
    return "head size is not a multiple of 8 up to 256";
  if (!(call.scale > 0)) return "scale is not positive";
  if (call.statistics && call.softcap > 0) return "statistics with softcap";
  if (call.statistics && call.scale > kLargestWatchedScale) return "statistics with a large scale";
  const auto mapped = [&](const void* data, const Sm90Strides& s) {
    return can_map({data, 0, 0, 0, 0, s.batch, s.head, s.row});
  };
  if (!mapped(call.q, call.q_strides) || !mapped(call.k, call.k_strides) ||
      !mapped(call.v, call.v_strides) || !mapped(call.out, call.out_strides))
    return "rows are not 16-byte aligned";
  if (std::max(call.q_rows, call.k_rows) >= kUnbounded) return "too many rows";
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major != 9) return "not a Hopper GPU";
  return nullptr;
}

void attention_forward_sm90(const Sm90Forward& call, cudaStream_t stream) {
  if (call.dtype == DType::bf16)
    launch_for<__nv_bfloat16>(call, stream);
  else
    launch_for<__half>(call, stream);
}

}  // namespace qkv::cuda

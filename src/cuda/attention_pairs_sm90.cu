// The forward pass for Hopper GPUs with something said of pairs: which calls, and which tiles.
#include "cuda/attention_forward_sm90_launch.cuh"

namespace qkv::cuda {
namespace {

using namespace forward_sm90;

template <class S>
void launch(const Sm90Forward& call, cudaStream_t stream) {
  launch_blocks<S>(params_of<S>(call), stream);
  check_status(cudaGetLastError(), kForwardName);
}

// Three warpgroups where registers hold their tiles; what was measured (docs/cuda.md).
template <class T, Said Pairs>
void launch_sizes(const Sm90Forward& call, cudaStream_t stream) {
  constexpr bool IsDistance = Pairs == Said::distance;
  if (call.head_size <= 64) {
    constexpr int Keys = IsDistance || Pairs == Said::mask ? 128 : 64;
    constexpr int Stages = Pairs == Said::mask ? 2 : 3;
    launch<Shape<T, 64, Keys, 3, Stages, false, Watched::no, Pairs>>(call, stream);
  } else if constexpr (IsDistance) {
    launch<Shape<T, 128, 128, 2, 2, false, Watched::no, Pairs>>(call, stream);
  } else {
    constexpr int Stages = Pairs == Said::dropout ? 3 : 2;
    launch<Shape<T, 128, 64, 3, Stages, false, Watched::no, Pairs>>(call, stream);
  }
}

template <class T>
void launch_for(const Sm90Forward& call, cudaStream_t stream) {
  switch (call.pairs.said) {
    case Said::bias: return launch_sizes<T, Said::bias>(call, stream);
    case Said::mask: return launch_sizes<T, Said::mask>(call, stream);
    case Said::distance: return launch_sizes<T, Said::distance>(call, stream);
    case Said::dropout: return launch_sizes<T, Said::dropout>(call, stream);
    case Said::nothing: return;
  }
}

}  // namespace

const char* why_not_sm90_pairs(const Sm90Forward& call) {
  const Sm90Pairs& pairs = call.pairs;
  if (pairs.said == Said::nothing) return nullptr;
  if (call.head_size > 128) return "a head size above 128 with something said of pairs";
  if (call.statistics) return "statistics with something said of pairs";
  if (call.softcap > 0) return "softcap with something said of pairs";
  if (call.sinks) return "sinks with something said of pairs";
  if (pairs.said != Said::bias && pairs.said != Said::mask) return nullptr;
  const Sm90Strides& strides = pairs.strides;
  const TensorView view{pairs.data, 0, 0, 0, 0, strides.batch, strides.head, strides.row};
  return can_map(view, pairs.said == Said::mask ? 1 : 2) && strides.row > 0
             ? nullptr
             : "rows of the bias or mask do not begin at multiples of 16 bytes";
}

void attention_pairs_sm90(const Sm90Forward& call, cudaStream_t stream) {
  if (call.dtype == DType::bf16)
    launch_for<__nv_bfloat16>(call, stream);
  else
    launch_for<__half>(call, stream);
}

}  // namespace qkv::cuda

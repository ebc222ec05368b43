// Which calls the kernels by matrix instructions serve.
#include "cuda/attention_mma.h"

#include <algorithm>
#include <cstdlib>

#include "cuda/tile/launch.cuh"

namespace qkv::cuda {
namespace {

std::int64_t largest_size(const AttentionProblem& p) { return std::max(p.head_size, p.value_size); }

std::string why_not_of_this_size(const AttentionProblem& p) {
  const std::int64_t most = p.q.dtype() == DType::f32 ? 128 : 256;
  return largest_size(p) > most ? "a head size above " + std::to_string(most) : "";
}

std::string why_not_either(const AttentionProblem& p, std::int64_t bytes_needed) {
  const DType dtype = p.q.dtype();
  const std::int64_t each = 16 / static_cast<std::int64_t>(size_of(dtype));
  if (p.head_size % each != 0 || p.value_size % each != 0) {
    return "a head size that is no multiple of " + std::to_string(each);
  }
  for (const Tensor* x : {&p.q, &p.k, &p.v}) {
    if (x->dtype() != dtype) return "dtypes differ";
    if (!lies_in_vectors(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  if (p.has_global()) return "there are global positions";
  if (!(p.scale > 0)) return "scale is not positive";
  if (p.sequences.empty() || p.q.numel() == 0 || p.k.numel() == 0) return "there is nothing to do";
  constexpr std::int64_t kFar = std::int64_t{1} << 29;  // sums of two stay within an int
  for (const AttentionSequence& s : p.sequences) {
    if (std::abs(s.offset) >= kFar) return "the diagonal is too far away";
  }
  return bytes_needed > most_shared() ? "shared memory is too small" : "";
}

}  // namespace

MmaElements mma_elements(const AttentionProblem& p) {
  const bool plain = p.softcap == 0 && !p.bias.defined() && !p.has_diagonal_bias() &&
                     p.dropout == 0 && !p.allowed.defined();
  return {p.q.dtype(), p.q.dtype() == DType::f32 && p.tf32 && plain};
}

std::string why_not_mma(const AttentionProblem& p, const AttentionResults& results) {
  if (std::string reason = why_not_of_this_size(p); !reason.empty()) return reason;
  if (!lies_in_vectors(results.out)) return "rows do not begin at multiples of 16 bytes";
  std::int64_t bytes = mma_forward_bytes(mma_elements(p), largest_size(p));
  if (results.statistics.received.defined()) {
    bytes = std::max(bytes, mma_received_bytes(mma_elements(p), p.head_size));
  }
  return why_not_either(p, bytes);
}

std::string why_not_mma(const AttentionProblem& p, const AttentionBackward& t) {
  if (t.dentropy.defined()) return "there is a gradient of the entropy";
  if (std::string reason = why_not_of_this_size(p); !reason.empty()) return reason;
  for (const Tensor* x : {&t.dout, &t.out, &t.dq, &t.dk, &t.dv}) {
    if (!lies_in_vectors(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  return why_not_either(p, mma_backward_bytes(mma_elements(p), largest_size(p)));
}

}  // namespace qkv::cuda

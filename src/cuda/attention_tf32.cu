// Which calls the kernels in TF32 serve.
#include "cuda/attention_tf32.h"

#include <cstdlib>

#include "cuda/attention_statistics.h"

namespace qkv::cuda {
namespace {

constexpr std::int64_t kLargestHead = 128;

// Vectors of 4 floats.
bool lies_well(const Tensor& x) {
  if (!x.defined()) return true;
  return x.stride(3) == 1 && x.stride(2) % 4 == 0 && x.stride(1) % 4 == 0 && x.stride(0) % 4 == 0 &&
         is_aligned(x.raw());
}

std::int64_t largest_size(const AttentionProblem& p) { return std::max(p.head_size, p.value_size); }

std::string why_not_either(const AttentionProblem& p, std::int64_t bytes_needed) {
  if (p.head_size % 4 != 0 || p.value_size % 4 != 0) return "a head size that is no multiple of 4";
  for (const Tensor* x : {&p.q, &p.k, &p.v}) {
    if (x->dtype() != DType::f32) return "not f32";
    if (!lies_well(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  if (p.softcap > 0) return "there is a softcap";
  if (p.bias.defined() || p.has_diagonal_bias()) return "there is a bias";
  if (p.dropout > 0) return "there is dropout";
  if (p.allowed.defined()) return "there is a mask of pairs";
  if (p.has_global()) return "there are global positions";
  if (!(p.scale > 0)) return "scale is not positive";
  if (p.sequences.empty() || p.q.numel() == 0 || p.k.numel() == 0) return "there is nothing to do";
  constexpr std::int64_t kFar = std::int64_t{1} << 29;  // sums of two stay within an int
  for (const AttentionSequence& s : p.sequences) {
    if (std::abs(s.offset) >= kFar) return "the diagonal is too far away";
  }
  int device = 0, most = 0;
  check_cuda(cudaGetDevice(&device), "attention");
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "attention");
  return bytes_needed > most ? "shared memory is too small" : "";
}

}  // namespace

std::string why_not_tf32(const AttentionProblem& p, const AttentionResults& results) {
  if (watches_scores(results.statistics) || results.statistics.received.defined()) {
    return "statistics are asked for";
  }
  if (largest_size(p) > kLargestHead) return "a head size above 128";
  if (!lies_well(results.out)) return "rows do not begin at multiples of 16 bytes";
  return why_not_either(p, tf32_forward_bytes(largest_size(p)));
}

std::string why_not_tf32(const AttentionProblem& p, const AttentionBackward& t) {
  if (t.dentropy.defined()) return "there is a gradient of the entropy";
  if (largest_size(p) > kLargestHead) return "a head size above 128";
  for (const Tensor* x : {&t.dout, &t.out, &t.dq, &t.dk, &t.dv}) {
    if (!lies_well(*x)) return "rows do not begin at multiples of 16 bytes";
  }
  return why_not_either(p, tf32_backward_bytes(largest_size(p)));
}

}  // namespace qkv::cuda

// A call of attention becomes a job; which kernels run it is decided here.
#include "cuda/attention.h"
#include "cuda/attention_global.h"
#include "cuda/attention_hopper.h"
#include "cuda/attention_mma.h"
#include "cuda/attention_short.h"
#include "cuda/attention_statistics.h"

#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "qkv/error.h"

namespace qkv {
namespace cuda {
namespace {

// What a job points to on the device must live until its kernels are queued.
struct PreparedJob {
  AttentionJob job;
  AttentionGrid grid;
  Tensor sequences, buckets, diagonal;
};

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

int narrow(std::int64_t value) {
  if (value > std::numeric_limits<int>::max()) {
    throw Error("attention: " + std::to_string(value) + " rows are too many for a CUDA device");
  }
  return static_cast<int>(value);
}

// What the table adds at each relative position, for each head.
__global__ void diagonal_kernel(AttentionJob job, float* to) {
  const int positions = 2 * job.bucket_reach + 1;
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (at >= positions) return;
  const int head = static_cast<int>(blockIdx.y);
  to[std::int64_t{head} * positions + at] =
      job.table[std::int64_t{job.buckets[at]} * job.heads + head];
}

// Elements of `item` bytes, and keys in whole vectors.
bool can_stage(const AttentionProblem& p, const Tensor& x, std::size_t item) {
  if (!x.defined()) return true;
  bool whole = size_of(x.dtype()) == item && lies_in_vectors(x);
  for (const AttentionSequence& s : p.sequences) {
    whole &= s.k_rows % (16 / static_cast<std::int64_t>(item)) == 0;
  }
  return whole;
}

PreparedJob prepare(CudaBackend& backend, const AttentionProblem& p) {
  PreparedJob prepared;
  AttentionJob& job = prepared.job;
  AttentionGrid& grid = prepared.grid;
  job.q = rows_of(p.q);
  job.k = rows_of(p.k);
  if (p.v.defined()) job.v = rows_of(p.v);
  job.heads = static_cast<int>(p.heads);
  job.group = static_cast<int>(p.group());
  job.head_size = static_cast<int>(p.head_size);
  job.value_size = static_cast<int>(p.value_size);
  job.q_total = p.q.size(2);
  job.k_total = p.k.size(2);
  std::vector<Sequence> sequences;
  std::int64_t farthest = 0;
  for (const AttentionSequence& s : p.sequences) {
    sequences.push_back({narrow(s.q_batch), narrow(s.k_batch), narrow(s.q_start), narrow(s.k_start),
                         narrow(s.q_rows), narrow(s.k_rows), narrow(s.q_seeing),
                         narrow(s.k_visible), s.offset});
    grid.longest_q = std::max(grid.longest_q, s.q_rows);
    grid.longest_k = std::max(grid.longest_k, s.k_rows);
    farthest = std::max(farthest, s.q_rows + s.k_rows + std::abs(s.offset));
  }
  grid.sequences = static_cast<unsigned>(sequences.size());
  prepared.sequences = backend.upload(bytes_of(sequences));
  job.sequences = static_cast<const Sequence*>(prepared.sequences.raw());

  job.scale = p.scale;
  job.softcap = p.softcap;
  job.causal = p.causal;
  job.left = p.left;
  job.right = p.right;
  if (p.allowed.defined()) job.allowed = rows_of(p.allowed);
  job.stages_pairs = (p.allowed.defined() || p.bias.defined()) &&
                     can_stage(p, p.allowed, sizeof(bool)) &&
                     can_stage(p, p.bias, sizeof(device_bf16));
  if (p.global_positions.defined()) {
    job.global_positions = pointer<const bool>(p.global_positions);
    job.global_batch = p.global_positions.stride(0);
    job.global_key = p.global_positions.stride(1);
  }
  job.global_first = p.global_first;
  if (p.bias.defined()) {
    job.bias = rows_of(p.bias);
    job.bias_dtype = p.bias.dtype();
  }
  if (p.slopes.defined()) {
    job.slopes = pointer<const float>(p.slopes);
    job.slopes_batch = p.slopes.stride(0);
    job.slopes_head = p.slopes.stride(1);
  }
  if (p.table.defined()) {
    job.table = pointer<const float>(p.table);
    job.bucket_count = static_cast<int>(p.table.size(0));
    // Beyond max_distance every position has the bucket of max_distance.
    const std::int64_t reach = std::min(p.max_distance, farthest) + 1;
    constexpr std::int64_t kMostReach = std::int64_t{1} << 24;  // positions, each with its bucket
    if (reach > kMostReach) {  // fmt, and so check(), does not compile here
      throw Error("attention: on a GPU a table tells " + std::to_string(kMostReach) +
                  " positions apart at most; max_distance and the diagonal are farther away");
    }
    job.bucket_reach = narrow(reach);
    std::vector<int> buckets;
    for (std::int64_t relative = -reach; relative <= reach; ++relative) {
      buckets.push_back(static_cast<int>(
          relative_bucket(relative, p.table.size(0), p.bidirectional, p.max_distance)));
    }
    prepared.buckets = backend.upload(bytes_of(buckets));
    job.buckets = static_cast<const int*>(prepared.buckets.raw());
    prepared.diagonal = backend.scratch<float>(std::ssize(buckets) * p.heads);
    auto* const diagonal = static_cast<float*>(prepared.diagonal.raw());
    const dim3 blocks(blocks_for(std::ssize(buckets)), static_cast<unsigned>(p.heads));
    diagonal_kernel<<<blocks, kThreads, 0, backend.stream()>>>(job, diagonal);
    check_launch("attention");
    job.diagonal = diagonal;
  }
  job.sinks = pointer<const float>(p.sinks);
  if (p.dropout > 0) {
    job.has_dropout = true;
    job.dropout = PairDropout(p.dropout, p.seed);
  }
  return prepared;
}

// The problem for kernels whose host has to know how many keys each sequence has: waits.
AttentionProblem with_lengths_read(const AttentionProblem& p) {
  AttentionProblem read = p;
  const std::vector<std::int32_t> lengths = p.key_lengths.to_vector<std::int32_t>();
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    AttentionSequence& s = read.sequences[b];
    s.k_visible = std::clamp<std::int64_t>(lengths[b], 0, s.k_rows);
    s.offset = s.k_visible - s.q_seeing;
  }
  read.key_lengths = {};
  return read;
}

// Arrays of one float per row, out of one allocation.
struct RowArrays {
  Tensor memory;
  std::int64_t count;
  int used = 0;

  RowArrays(CudaBackend& backend, std::int64_t rows, int arrays)
      : memory(backend.scratch<float>(rows * arrays)), count(rows) {}
  float* next() { return static_cast<float*>(memory.raw()) + count * used++; }
};

}  // namespace
}  // namespace cuda

void CudaBackend::attention_forward(const AttentionProblem& p, const AttentionResults& out) {
  stream();  // the device is this one
  if (p.pages.defined()) return cuda::hopper_forward(*this, p, out);
  if (p.key_lengths.defined()) {
    if (cuda::decodes(p, out)) return cuda::hopper_forward(*this, p, out);
    return attention_forward(cuda::with_lengths_read(p), out);
  }
  const AttentionStatistics& wanted = out.statistics;
  if (wanted.received.defined()) {
    Tensor zeros = wanted.received;  // keys of no sequence stay so
    fill(zeros, 0);
  }
  if (p.sequences.empty()) return;
  const bool is_short = cuda::why_not_short(p, out).empty();
  if (!is_short && cuda::why_not_hopper(p, out).empty()) {
    if (!p.table.defined()) return cuda::hopper_forward(*this, p, out);
    const cuda::PreparedJob prepared = cuda::prepare(*this, p);
    cuda::HopperExtras extras;
    extras.diagonal = prepared.job.diagonal;
    extras.reach = prepared.job.bucket_reach;
    return cuda::hopper_forward(*this, p, out, extras);
  }
  if (!is_short && cuda::why_not_split(p, out).empty()) {
    return cuda::split_forward(*this, p, out);
  }
  cuda::PreparedJob prepared = cuda::prepare(*this, p);
  const cuda::AttentionJob& job = prepared.job;
  if (is_short) return cuda::short_forward(job, prepared.grid, out, stream());
  const bool has_statistics = cuda::watches_scores(wanted) || wanted.received.defined();
  cuda::RowStatistics rows;
  std::optional<cuda::RowArrays> arrays;
  if (has_statistics) {
    arrays.emplace(*this, out.lse.numel(), 8);
    rows.seen = arrays->next();
    rows.top = arrays->next();
    rows.share = arrays->next();
    rows.logit = arrays->next();
    rows.origin = arrays->next();
    rows.mean = arrays->next();
    rows.squares = arrays->next();
    rows.moments = wanted.score_mean.defined();
    rows.entropy = cuda::pointer<float>(wanted.entropy);
    rows.top_weight = wanted.top_weight.defined()   ? cuda::pointer<float>(wanted.top_weight)
                      : wanted.saturation.defined() ? arrays->next()
                                                    : nullptr;
    rows.top_index = cuda::pointer<int>(wanted.top_index);
  }
  const bool by_mma = cuda::why_not_mma(p, out).empty();
  const cuda::Rows to = cuda::rows_of(out.out);
  auto* const lse = cuda::pointer<float>(out.lse);
  if (by_mma) {
    cuda::mma_forward(job, prepared.grid, cuda::mma_elements(p), {to, lse, has_statistics, rows},
                      stream());
  } else {
    cuda::general_forward(job, prepared.grid, p.q.dtype(), to, lse,
                          has_statistics ? &rows : nullptr, stream());
  }
  if (!has_statistics) return;
  cuda::head_statistics(job, prepared.grid, rows, wanted, stream());
  if (wanted.received.defined()) {
    auto* const to = cuda::pointer<float>(wanted.received);
    if (by_mma) {
      cuda::mma_received(job, prepared.grid, cuda::mma_elements(p), rows, to, stream());
    } else {
      cuda::received(job, prepared.grid, p.q.dtype(), rows, to, stream());
    }
  }
}

void CudaBackend::attention_backward(const AttentionProblem& p, const AttentionBackward& t) {
  stream();
  if (p.key_lengths.defined()) return attention_backward(cuda::with_lengths_read(p), t);
  if (p.sequences.empty()) return;
  const bool is_short = cuda::why_not_short(p, t).empty();
  if (!is_short && cuda::why_not_split(p, t).empty()) return cuda::split_backward(*this, p, t);
  cuda::PreparedJob prepared = cuda::prepare(*this, p);
  cuda::AttentionJob& job = prepared.job;
  cuda::BackwardTensors tensors;
  tensors.dout = cuda::rows_of(t.dout);
  tensors.out = cuda::rows_of(t.out);
  tensors.dq = cuda::rows_of(t.dq);
  tensors.dk = cuda::rows_of(t.dk);
  tensors.dv = cuda::rows_of(t.dv);
  tensors.lse = cuda::pointer<const float>(t.lse);
  tensors.dlse = cuda::pointer<const float>(t.dlse);
  tensors.dentropy = cuda::pointer<const float>(t.dentropy);
  tensors.entropy = cuda::pointer<const float>(t.entropy);
  if (is_short) {
    return cuda::short_backward(job, prepared.grid, p.q.dtype(), tensors, stream());
  }
  cuda::RowArrays arrays(*this, t.lse.numel(), 5);
  cuda::BackwardRows rows{arrays.next(), arrays.next(), arrays.next()};
  Tensor failed;
  std::optional<cuda::MmaBackward> mma;
  cuda::HopperBackward faster;
  const DType dtype = p.q.dtype();
  if (cuda::why_not_hopper(p, t).empty()) {
    if (p.sinks.defined() || p.has_diagonal_bias() || p.bias.defined()) {
      // For the gradients of these, and for weights under a bias.
      const cuda::MmaBackward known{tensors, rows, arrays.next(), nullptr};
      cuda::mma_rows(job, prepared.grid, {dtype, false}, known, stream());
      if (cuda::why_not_mma(p, t).empty()) mma = known;
    }
    faster =
        cuda::hopper_backward(*this, p, t, {rows.top, rows.share, job.diagonal, job.bucket_reach});
    job.only_if = faster.served;
    if (mma) mma->far = faster.far;
  } else if (cuda::why_not_mma(p, t).empty()) {
    failed = scratch<std::uint32_t>(1);
    const cuda::MmaElements elements = cuda::mma_elements(p);
    mma = {tensors, rows, elements.exact_floats() ? rows.top : arrays.next(),
           static_cast<std::uint32_t*>(failed.raw())};
    cuda::mma_backward(job, prepared.grid, elements, *mma, stream());
    job.only_if = mma->failed;  // of the general kernels behind it
  }
  if (t.dentropy.defined()) {
    rows.dentropy = arrays.next();
    rows.expected = arrays.next();
  }
  cuda::prepare_backward(job, prepared.grid, dtype, tensors, rows, stream());
  cuda::general_backward(job, prepared.grid, dtype, tensors, rows, stream());
  cuda::bias_backward(*this, job, prepared.grid, dtype, tensors, rows, t, mma ? &*mma : nullptr);
}

bool CudaBackend::reads_pages(const AttentionProblem& p, Statistics statistics) {
  stream();  // the device is this one
  AttentionResults results;
  if (statistics != Statistics::none) results.statistics.max_logit = p.q;  // any tensor says so
  return cuda::decodes(p, results);
}

AttentionKernels CudaBackend::attention_kernels(const AttentionProblem& p,
                                                const AttentionOptions& options) {
  stream();  // the device is this one
  AttentionResults results;
  // Any tensor says that a statistic is asked for.
  if (has(options.statistics, Statistics::received)) results.statistics.received = p.q;
  if (options.statistics != Statistics::none) results.statistics.max_logit = p.q;
  const bool short_forward = cuda::why_not_short(p, results).empty();
  const bool short_backward = cuda::why_not_short(p, AttentionBackward()).empty();
  const std::string mma = cuda::mma_elements(p).tf32 ? "tf32" : "mma";
  // Parts of a call with global positions go where calls without go.
  const auto forward = [&]() -> std::string {
    if (p.key_lengths.defined() && cuda::decodes(p, results)) return "decode";
    if (short_forward) return "short";
    if (cuda::why_not_split(p, results).empty()) return "in parts";
    if (cuda::why_not_hopper(p, results).empty()) return cuda::hopper_kernel(p, results);
    const std::string reason = cuda::why_not_mma(p, results);
    return reason.empty() ? mma : "general: " + reason;
  };
  const auto backward = [&]() -> std::string {
    if (short_backward) return "short";
    if (cuda::why_not_split(p, AttentionBackward()).empty()) return "in parts";
    if (cuda::why_not_hopper(p, AttentionBackward()).empty()) return "sm90";
    const std::string reason = cuda::why_not_mma(p, AttentionBackward());
    return reason.empty() ? mma : "general: " + reason;
  };
  return {forward(), backward()};
}

void CudaBackend::attention_weights(const AttentionProblem& p, const AttentionWeights& wanted) {
  if (wanted.weights.numel() == 0) return;
  if (p.key_lengths.defined()) return attention_weights(cuda::with_lengths_read(p), wanted);
  const cuda::PreparedJob prepared = cuda::prepare(*this, p);
  const Tensor heads = upload(cuda::bytes_of(wanted.heads));
  const Tensor rows = upload(cuda::bytes_of(wanted.rows));
  cuda::weights(prepared.job, p.q.dtype(), wanted, static_cast<const std::int64_t*>(heads.raw()),
                static_cast<const std::int64_t*>(rows.raw()), stream());
}

}  // namespace qkv

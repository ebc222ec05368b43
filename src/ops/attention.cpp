// attention: check every argument, resolve every default, allocate, call one kernel.
#include "qkv/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/backend.h"
#include "core/check.h"
#include "ops/attention_checks.h"
#include "ops/attention_pages.h"
#include "ops/layout.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"
#include "qkv/quantize.h"

namespace qkv {
namespace {

// Packed results are computed as [1, H, T, ...] and handed out without the leading 1.
Tensor without_batch(const Tensor& x) {
  if (!x.defined()) return x;
  std::vector<std::int64_t> extents(x.shape().extents().begin() + 1, x.shape().extents().end());
  return reshape(x, extents);
}

AttentionStatistics empty_statistics(Statistics wanted, const Shape& rows, const Shape& heads,
                                     const Shape& keys, Device device) {
  const TensorOptions f32{DType::f32, device};
  AttentionStatistics s;
  if (has(wanted, Statistics::max_logit)) s.max_logit = Tensor::empty(heads, f32);
  if (has(wanted, Statistics::score_moments)) {
    s.score_mean = Tensor::empty(heads, f32);
    s.score_var = Tensor::empty(heads, f32);
  }
  if (has(wanted, Statistics::entropy)) {
    s.entropy = Tensor::empty(rows, f32);
    s.entropy_mean = Tensor::empty(heads, f32);
    s.entropy_relative = Tensor::empty(heads, f32);
  }
  if (has(wanted, Statistics::top_weight)) {
    s.top_weight = Tensor::empty(rows, f32);
    s.top_index = Tensor::empty(rows, {DType::i32, device});
  }
  if (has(wanted, Statistics::top_weight | Statistics::saturation)) {
    s.saturation = Tensor::empty(heads, f32);
  }
  if (has(wanted, Statistics::received)) s.received = Tensor::empty(keys, f32);
  return s;
}

// A contiguous copy of x (or zeros), which `problem.q`-shaped kernels can index like lse.
Tensor rows_like(const char* name, const Tensor& given, const Tensor& lse, bool packed) {
  if (!given.defined()) return {};
  check(given.dtype() == DType::f32 && given.shape() == lse.shape(),
        "attention_backward: the gradient of {} must be f32 {}, got {} {}", name, lse.shape(),
        given.dtype(), given.shape());
  const Tensor rows = contiguous(given);
  return packed ? reshape(rows, {1, rows.size(0), rows.size(1)}) : rows;
}

// Uninitialised, like x in shape and layout but for its last extent: queries that are a view of
// [B, S, H, D] get a result whose heads merge without a copy.
Tensor empty_as(const Tensor& x, std::int64_t width) {
  return empty_in_layout(x, with_last(x.shape(), width), x.dtype());
}

// Gradients of q, k and v. Where those are views of one [B, S, (H + 2 Hk) D], as a joint projection
// gives them, the gradients are views of one in the same way, and need not be put together.
AttentionGrads empty_grads(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto item = static_cast<std::ptrdiff_t>(size_of(q.dtype()));
  const auto after = [&](const Tensor& x, std::int64_t elements) {
    return static_cast<const std::byte*>(x.raw()) + elements * item;
  };
  const bool dense = q.rank() == 4 && q.numel() > 0 && q.size(3) == v.size(3) &&
                     q.size(2) == k.size(2) && q.size(2) > 1;
  const std::int64_t width = dense ? (q.size(1) + 2 * k.size(1)) * q.size(3) : 0;
  const auto is_part = [&](const Tensor& x) {
    return x.stride(3) == 1 && (x.size(1) == 1 || x.stride(1) == x.size(3)) &&
           x.stride(2) == width && (x.size(0) == 1 || x.stride(0) == width * x.size(2));
  };
  AttentionGrads grads;
  if (!dense || !is_part(q) || !is_part(k) || !is_part(v) ||
      k.raw() != after(q, q.size(1) * q.size(3)) || v.raw() != after(k, k.size(1) * k.size(3))) {
    grads.dq = empty_as(q, q.size(-1));
    grads.dk = empty_as(k, k.size(-1));
    grads.dv = empty_as(v, v.size(-1));
    return grads;
  }
  const Tensor all = Tensor::empty({q.size(0) * q.size(2) * width}, {q.dtype(), q.device()});
  const auto part = [&](const Tensor& x, std::int64_t first) {
    const std::int64_t strides[] = {width * x.size(2), x.size(3), width, 1};
    return all.view(x.shape(), strides, first);
  };
  grads.dq = part(q, 0);
  grads.dk = part(k, q.size(1) * q.size(3));
  grads.dv = part(v, (q.size(1) + k.size(1)) * q.size(3));
  return grads;
}

void record_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                      const AttentionForward& forward, const AttentionOptions& options) {
  if (!Tape::recording()) return;
  check(!options.key_scale.defined(), "attention: i8 keys and values cannot be recorded");
  const Bias& bias = options.bias;
  const Tensor learned = !bias.gradient          ? Tensor()
                         : bias.values.defined() ? bias.values
                         : bias.slopes.defined() ? bias.slopes
                                                 : bias.table;
  Tape::record_all("attention", {q, k, v, learned, options.sinks},
                   {forward.out, forward.lse, forward.statistics.entropy},
                   [q, k, v, forward, options](std::span<const Tensor> dout) {
                     const Tensor dy = dout[0].defined() ? to(dout[0], q.dtype())
                                                         : Tensor::zeros(forward.out.shape(),
                                                                         {q.dtype(), q.device()});
                     const AttentionGrads grads =
                         attention_backward({dy, dout[1], dout[2]}, q, k, v, forward, options);
                     return std::vector{grads.dq, grads.dk, grads.dv, grads.dbias, grads.dsinks};
                   });
}

// Allocates what a call gives, and fills it. `keys` is Sk.
AttentionForward run_forward(const AttentionProblem& problem, const Tensor& q, std::int64_t keys,
                             const AttentionOptions& options) {
  const bool packed = options.mask.query_offsets.defined();
  const std::int64_t batch = problem.q.size(0), rows = problem.q.size(2);
  const auto sequences = static_cast<std::int64_t>(problem.sequences.size());
  const Device device = q.device();

  AttentionForward forward;
  forward.out = empty_as(q, problem.value_size);
  AttentionResults results;
  results.out = attention_batch(forward.out, packed);
  results.lse = Tensor::empty({batch, problem.heads, rows}, {DType::f32, device});
  results.statistics =
      empty_statistics(options.statistics, results.lse.shape(), {sequences, problem.heads},
                       {batch, problem.heads, keys}, device);
  backend(device).attention_forward(problem, results);

  forward.lse = packed ? without_batch(results.lse) : results.lse;
  forward.statistics = results.statistics;
  if (packed) {
    AttentionStatistics& s = forward.statistics;
    for (Tensor* row : {&s.entropy, &s.top_weight, &s.top_index, &s.received}) {
      *row = without_batch(*row);
    }
  }
  return forward;
}

AttentionForward paged_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionOptions& options) {
  const AttentionProblem problem = check_paged_attention(q, k, v, options);
  if (!Tape::recording() && backend(q.device()).reads_pages(problem, options.statistics)) {
    return run_forward(problem, q, problem.pages.size(1) * k.size(2), options);
  }
  AttentionOptions plain = options;
  plain.pages = {};
  return attention_forward(q, in_one_piece(k, problem.pages), in_one_piece(v, problem.pages),
                           plain);
}

}  // namespace

AttentionForward attention_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options) {
  if (options.pages.defined()) return paged_forward(q, k, v, options);
  const AttentionProblem problem = check_attention("attention", q, k, &v, options);
  const AttentionForward forward = run_forward(problem, q, problem.k.size(2), options);
  record_attention(q, k, v, forward, options);
  return forward;
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  return attention_forward(q, k, v, options).out;
}

AttentionGrads attention_backward(const AttentionOutputGrads& grads, const Tensor& q,
                                  const Tensor& k, const Tensor& v, const AttentionForward& forward,
                                  const AttentionOptions& options) {
  const AttentionProblem problem = check_attention("attention_backward", q, k, &v, options);
  check(!problem.k_scale.defined(), "attention_backward: i8 keys and values have no gradient");
  const bool packed = options.mask.query_offsets.defined();
  check(forward.out.defined() && forward.lse.defined(),
        "attention_backward: forward must hold out and lse of attention_forward");
  check_attention_grads(grads, forward, problem, packed);

  AttentionBackward tensors;
  tensors.dout = attention_batch(grads.out, packed);
  tensors.out = attention_batch(forward.out, packed);
  tensors.lse = rows_like("lse", forward.lse, forward.lse, packed);
  tensors.dlse = rows_like("lse", grads.lse, forward.lse, packed);
  tensors.dentropy = rows_like("entropy", grads.entropy, forward.lse, packed);
  if (tensors.dentropy.defined()) {
    tensors.entropy = rows_like("entropy", forward.statistics.entropy, forward.lse, packed);
  }

  const Device device = q.device();
  const TensorOptions f32{DType::f32, device};
  AttentionGrads result = empty_grads(q, k, v);
  tensors.dq = attention_batch(result.dq, packed);
  tensors.dk = attention_batch(result.dk, packed);
  tensors.dv = attention_batch(result.dv, packed);
  const Bias& bias = options.bias;
  if (bias.gradient && bias.values.defined()) {
    result.dbias = Tensor::zeros(bias.values.shape(), f32);
    std::vector<std::int64_t> extents(bias.values.shape().extents().begin(),
                                      bias.values.shape().extents().end());
    extents.insert(extents.begin(), 4 - extents.size(), 1);
    tensors.dbias = reshape(result.dbias, extents);
  } else if (bias.gradient && bias.slopes.defined()) {
    result.dbias = Tensor::zeros(bias.slopes.shape(), f32);
    tensors.dslopes = reshape(result.dbias, {-1, problem.heads});
  } else if (bias.gradient && bias.table.defined()) {
    result.dbias = Tensor::zeros(bias.table.shape(), f32);
    tensors.dtable = result.dbias;
  }
  if (options.sinks.defined()) {
    result.dsinks = Tensor::zeros(options.sinks.shape(), f32);
    tensors.dsinks = result.dsinks;
  }
  backend(device).attention_backward(problem, tensors);
  return result;
}

AttentionKernels attention_kernels(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options) {
  return backend(q.device())
      .attention_kernels(check_attention("attention_kernels", q, k, &v, options), options);
}

Tensor attention_weights(const Tensor& q, const Tensor& k, const AttentionOptions& options,
                         const WeightsSelection& selection) {
  AttentionProblem problem = check_attention("attention_weights", q, k, nullptr, options);
  if (problem.k_scale.defined()) {
    const Tensor& s = problem.k_scale;
    problem.k =
        dequantize({problem.k, reshape(s, {s.size(0), s.size(1), s.size(2), 1})}, q.dtype());
    problem.k_scale = {};
  }
  check(!options.mask.query_offsets.defined(),
        "attention_weights: packed sequences are not supported; pass one sequence at a time");
  check(selection.pool_rows >= 1 && selection.pool_keys >= 1,
        "attention_weights: pool_rows and pool_keys must be at least 1, got {} and {}",
        selection.pool_rows, selection.pool_keys);
  AttentionWeights wanted;
  const auto choose = [](const char* what, const std::vector<std::int64_t>& given,
                         std::int64_t count) {
    std::vector<std::int64_t> chosen = given;
    if (chosen.empty()) {
      chosen.resize(static_cast<std::size_t>(count));
      std::iota(chosen.begin(), chosen.end(), 0);
    }
    for (const std::int64_t i : chosen) {
      check(i >= 0 && i < count, "attention_weights: {} {} is out of range [0, {})", what, i,
            count);
    }
    return chosen;
  };
  wanted.heads = choose("head", selection.heads, problem.heads);
  wanted.rows = choose("row", selection.rows, problem.q.size(2));
  // A block larger than all there is holds all there is.
  const auto rows = static_cast<std::int64_t>(wanted.rows.size());
  wanted.pool_rows = std::min(selection.pool_rows, std::max<std::int64_t>(rows, 1));
  wanted.pool_keys = std::min(selection.pool_keys, std::max<std::int64_t>(problem.k.size(2), 1));
  const auto blocks = [](std::int64_t n, std::int64_t size) { return (n + size - 1) / size; };
  wanted.weights =
      Tensor::zeros({problem.q.size(0), static_cast<std::int64_t>(wanted.heads.size()),
                     blocks(rows, wanted.pool_rows), blocks(problem.k.size(2), wanted.pool_keys)},
                    {DType::f32, q.device()});
  backend(q.device()).attention_weights(problem, wanted);
  return wanted.weights;
}

}  // namespace qkv

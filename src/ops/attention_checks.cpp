#include "ops/attention_checks.h"

#include <algorithm>
#include <cmath>
#include <exception>

#include "core/check.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

constexpr std::int64_t kMaxHeadSize = 1024;

void check_inputs(const char* op, const Tensor& q, const Tensor& k, const Tensor* v, bool packed,
                  bool quantized) {
  const int rank = packed ? 3 : 4;
  const char* layout = packed ? "[T, H, D] (packed)" : "[B, H, S, D]";
  const auto check_one = [&](const char* name, const Tensor& x) {
    check(x.defined(), "{}: {} is undefined", op, name);
    check(x.rank() == rank, "{}: {} must be {}, got {}", op, name, layout, x.shape());
    const bool is_bytes = quantized && &x != &q;
    check(is_bytes ? x.dtype() == DType::i8 : is_floating(x.dtype()), "{}: {} must be {}, got {}",
          op, name, is_bytes ? "i8, as it has scales" : "f32, bf16 or f16", x.dtype());
    check(is_bytes || x.dtype() == q.dtype(), "{}: {} must have the dtype of q ({}), got {}", op,
          name, q.dtype(), x.dtype());
    check(x.device() == q.device(), "{}: {} must be on the device of q ({}), got {}", op, name,
          q.device(), x.device());
  };
  check_one("q", q);
  check_one("k", k);
  const int head = 1, row = packed ? 0 : 2;
  check(q.size(-1) == k.size(-1), "{}: q {} and k {} must have the same head size", op, q.shape(),
        k.shape());
  check(q.size(-1) >= 1 && q.size(-1) <= kMaxHeadSize, "{}: the head size of q {} must be 1 to {}",
        op, q.shape(), kMaxHeadSize);
  check(k.size(head) >= 1 && q.size(head) % k.size(head) == 0 && q.size(head) >= 1,
        "{}: the heads of q {} must be a multiple of the heads of k {}", op, q.shape(), k.shape());
  check(packed || q.size(0) == k.size(0), "{}: q {} and k {} must have the same batch size", op,
        q.shape(), k.shape());
  if (v == nullptr) return;
  check_one("v", *v);
  check(v->size(head) == k.size(head) && v->size(row) == k.size(row) &&
            (packed || v->size(0) == k.size(0)),
        "{}: v {} must have the batch, heads and length of k {}", op, v->shape(), k.shape());
  check(v->size(-1) >= 1 && v->size(-1) <= kMaxHeadSize,
        "{}: the head size of v {} must be 1 to {}", op, v->shape(), kMaxHeadSize);
}

// The scales of i8 keys or values.
Tensor check_scale(const char* op, const char* name, const Tensor& scale, const Tensor& x) {
  check(scale.defined(), "{}: {} is undefined, although k and v are i8", op, name);
  check(scale.dtype() == DType::f32 && scale.shape() == Shape{x.size(0), x.size(1), x.size(2)} &&
            scale.device() == x.device(),
        "{}: {} must be f32 [{}, {}, {}], got {} {}", op, name, x.size(0), x.size(1), x.size(2),
        scale.dtype(), scale.shape());
  return scale;
}

// An i32 vector on the CPU side of the call, empty when the tensor is undefined.
std::vector<std::int32_t> small_vector(const char* op, const char* name, const Tensor& x,
                                       std::int64_t count, const char* expected) {
  if (!x.defined()) return {};
  check(x.dtype() == DType::i32 && x.rank() == 1 && (count < 0 || x.size(0) == count),
        "{}: mask.{} must be i32 {}, got {} {}", op, name, expected, x.dtype(), x.shape());
  return x.to_vector<std::int32_t>();
}

std::vector<std::int32_t> check_offsets(const char* op, const char* name, const Tensor& x,
                                        std::int64_t count, const Tensor& rows) {
  std::vector<std::int32_t> o = small_vector(op, name, x, count, "[B + 1]");
  check(!o.empty() && o.front() == 0 && o.back() == rows.size(0),
        "{}: mask.{} must begin with 0 and end with the {} rows of {}", op, name, rows.size(0),
        rows.shape());
  for (std::size_t b = 0; b + 1 < o.size(); ++b) {
    check(o[b] <= o[b + 1], "{}: mask.{} must not decrease, got {} after {} at {}", op, name,
          o[b + 1], o[b], b + 1);
  }
  return o;
}

// Whether the device alone is to read the lengths of keys: nothing then waits for it.
bool keeps_lengths(const Mask& mask) {
  return mask.key_lengths.defined() && mask.key_lengths.device() != kCpu &&
         !mask.query_lengths.defined() && !mask.query_offsets.defined() &&
         !mask.offset_per_sequence.defined() && !mask.offset && mask.align == Align::bottom_right;
}

// Lengths and diagonal of each sequence; packed or dense.
std::vector<AttentionSequence> resolve_sequences(const char* op, const Tensor& q, const Tensor& k,
                                                 const Mask& mask) {
  const bool packed = mask.query_offsets.defined();
  check(packed || !mask.key_offsets.defined(), "{}: mask.key_offsets needs mask.query_offsets", op);
  std::vector<AttentionSequence> sequences;
  if (packed) {
    check(
        !mask.allowed_pairs.defined() && !mask.global_positions.defined() && mask.global_first == 0,
        "{}: packed sequences take causal, window and length masks, not allowed or global ones",
        op);
    const auto qo = check_offsets(op, "query_offsets", mask.query_offsets, -1, q);
    const Tensor& keys = mask.key_offsets.defined() ? mask.key_offsets : mask.query_offsets;
    const char* name = mask.key_offsets.defined() ? "key_offsets" : "query_offsets";
    const auto ko = check_offsets(op, name, keys, static_cast<std::int64_t>(qo.size()), k);
    for (std::size_t b = 0; b + 1 < qo.size(); ++b) {
      AttentionSequence s;
      s.q_start = qo[b];
      s.k_start = ko[b];
      s.q_rows = qo[b + 1] - qo[b];
      s.k_rows = ko[b + 1] - ko[b];
      sequences.push_back(s);
    }
  } else {
    try {  // a batch that was expanded may be larger than its memory
      sequences.reserve(static_cast<std::size_t>(q.size(0)));
    } catch (const std::exception&) {
      fail<OutOfMemory>("{}: out of memory for the {} sequences of q {}", op, q.size(0), q.shape());
    }
    for (std::int64_t b = 0; b < q.size(0); ++b) {
      AttentionSequence s;
      s.q_batch = s.k_batch = b;
      s.q_rows = q.size(2);
      s.k_rows = k.size(2);
      sequences.push_back(s);
    }
  }
  const auto batch = static_cast<std::int64_t>(sequences.size());
  const auto key_lengths = small_vector(
      op, "key_lengths", keeps_lengths(mask) ? Tensor() : mask.key_lengths, batch, "[B]");
  const auto query_lengths = small_vector(op, "query_lengths", mask.query_lengths, batch, "[B]");
  const auto offsets =
      small_vector(op, "offset_per_sequence", mask.offset_per_sequence, batch, "[B]");
  const auto length_of = [&](const char* name, const std::vector<std::int32_t>& lengths,
                             std::int64_t b, std::int64_t rows) -> std::int64_t {
    if (lengths.empty()) return rows;
    check(lengths[b] >= 0 && lengths[b] <= rows, "{}: mask.{}[{}] must be 0 to {}, got {}", op,
          name, b, rows, lengths[b]);
    return lengths[b];
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    AttentionSequence& s = sequences[b];
    s.k_visible = length_of("key_lengths", key_lengths, b, s.k_rows);
    s.q_seeing = length_of("query_lengths", query_lengths, b, s.q_rows);
    if (!offsets.empty()) {
      s.offset = offsets[b];
    } else if (mask.offset) {
      s.offset = *mask.offset;
    } else if (mask.align == Align::bottom_right) {
      s.offset = s.k_visible - s.q_seeing;
    }
  }
  return sequences;
}

Tensor broadcast(const char* op, const char* name, const Tensor& x, const Shape& shape) {
  check(x.rank() <= shape.rank(), "{}: {} {} does not broadcast to {}", op, name, x.shape(), shape);
  for (int axis = -1; axis >= -x.rank(); --axis) {
    check(x.size(axis) == 1 || x.size(axis) == shape[axis], "{}: {} {} does not broadcast to {}",
          op, name, x.shape(), shape);
  }
  return expand(x, shape);
}

void check_numbers(const char* op, const AttentionOptions& options) {
  check(!options.scale || std::isfinite(*options.scale), "{}: scale must be finite, got {}", op,
        options.scale.value_or(0));
  check(std::isfinite(options.softcap) && options.softcap >= 0,
        "{}: softcap must be finite and not negative, got {}", op, options.softcap);
  check(options.dropout >= 0 && options.dropout < 1, "{}: dropout must be in [0, 1), got {}", op,
        options.dropout);
  check(options.mask.left >= -1 && options.mask.right >= -1,
        "{}: a window is (left, right) with -1 for unbounded, got ({}, {})", op, options.mask.left,
        options.mask.right);
  constexpr std::int64_t kFar = std::int64_t{1} << 40;  // far beyond any row, far from overflow
  const std::int64_t offset = options.mask.offset.value_or(0);
  check(-kFar < offset && offset < kFar, "{}: mask.offset {} is out of range", op, offset);
  check(options.mask.left < kFar && options.mask.right < kFar,
        "{}: the window ({}, {}) is out of range", op, options.mask.left, options.mask.right);
  check(options.mask.global_first >= 0, "{}: mask.global_first must not be negative, got {}", op,
        options.mask.global_first);
}

void resolve_bias(const char* op, const Bias& bias, const Shape& pairs, bool packed,
                  AttentionProblem& problem) {
  const int kinds =
      int{bias.values.defined()} + int{bias.slopes.defined()} + int{bias.table.defined()};
  check(kinds <= 1, "{}: bias is a tensor, slopes or a table, not several", op);
  const Device device = problem.q.device();
  const auto on_device = [&](const char* name, const Tensor& x) {
    check(x.device() == device, "{}: {} must be on the device of q ({}), got {}", op, name, device,
          x.device());
  };
  if (bias.values.defined()) {
    on_device("bias", bias.values);
    check(is_floating(bias.values.dtype()), "{}: bias must be floating point, got {}", op,
          bias.values.dtype());
    check(!packed, "{}: packed sequences take slopes or a table as bias, not a tensor", op);
    problem.bias = broadcast(op, "bias", bias.values, pairs);
  } else if (bias.slopes.defined()) {
    on_device("bias.slopes", bias.slopes);
    check(bias.slopes.dtype() == DType::f32, "{}: bias.slopes must be f32, got {}", op,
          bias.slopes.dtype());
    const auto batch = static_cast<std::int64_t>(problem.sequences.size());
    check(
        bias.slopes.rank() <= 2 && bias.slopes.rank() >= 1 && bias.slopes.size(-1) == problem.heads,
        "{}: bias.slopes must be [{}] or [{}, {}], got {}", op, problem.heads, batch, problem.heads,
        bias.slopes.shape());
    problem.slopes = broadcast(op, "bias.slopes", bias.slopes, {batch, problem.heads});
  } else if (bias.table.defined()) {
    on_device("bias.table", bias.table);
    check(bias.table.dtype() == DType::f32 && bias.table.rank() == 2 &&
              bias.table.size(1) == problem.heads && bias.table.size(0) >= 1,
          "{}: bias.table must be f32 [buckets, {}], got {} {}", op, problem.heads,
          bias.table.dtype(), bias.table.shape());
    const std::int64_t exact = bias.table.size(0) / (bias.bidirectional ? 4 : 2);
    check(exact >= 1 && bias.max_distance > exact,
          "{}: bias.table with {} buckets needs max_distance above {} and at least {} buckets, got "
          "max_distance {}",
          op, bias.table.size(0), exact, bias.bidirectional ? 4 : 2, bias.max_distance);
    problem.table = contiguous(bias.table);
    problem.bidirectional = bias.bidirectional;
    problem.max_distance = bias.max_distance;
  }
}

}  // namespace

Tensor attention_batch(const Tensor& x, bool packed) {
  if (!packed) return x;
  const std::int64_t extents[] = {1, x.size(1), x.size(0), x.size(2)};
  const std::int64_t strides[] = {0, x.stride(1), x.stride(0), x.stride(2)};
  return x.view(Shape(extents), strides, 0);
}

AttentionProblem check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor* v,
                                 const AttentionOptions& options) {
  const Mask& mask = options.mask;
  const bool packed = mask.query_offsets.defined();
  const bool quantized = options.key_scale.defined() || options.value_scale.defined();
  check(!options.pages.defined(), "{}: keys and values in pages are for attention_forward alone",
        op);
  check(!packed || !quantized, "{}: packed sequences take no i8 keys and values", op);
  check_inputs(op, q, k, v, packed, quantized);
  check_numbers(op, options);

  AttentionProblem problem;
  problem.q = attention_batch(q, packed);
  problem.k = attention_batch(k, packed);
  if (v != nullptr) {
    problem.v = attention_batch(*v, packed);
    problem.value_size = v->size(-1);
  }
  if (quantized) {
    problem.k_scale = check_scale(op, "key_scale", options.key_scale, k);
    if (v != nullptr) problem.v_scale = check_scale(op, "value_scale", options.value_scale, *v);
  }
  problem.heads = q.size(1);
  problem.key_heads = k.size(1);
  problem.head_size = q.size(-1);
  problem.sequences = resolve_sequences(op, q, k, mask);
  if (keeps_lengths(mask)) {
    const Tensor& lengths = mask.key_lengths;
    check(lengths.dtype() == DType::i32 && lengths.shape() == Shape{q.size(0)} &&
              lengths.device() == q.device(),
          "{}: mask.key_lengths must be i32 [{}] on the CPU or the device of q, got {} {} on {}",
          op, q.size(0), lengths.dtype(), lengths.shape(), lengths.device());
    problem.key_lengths = contiguous(lengths);
  }
  problem.scale = options.scale.value_or(
      static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_size))));
  problem.softcap = options.softcap;
  problem.dropout = options.dropout;
  problem.seed = options.seed;
  problem.deterministic = options.deterministic;
  problem.tf32 = options.tf32;
  problem.causal = mask.causal_part;
  problem.left = mask.left;
  problem.right = mask.right;

  const Shape pairs{problem.q.size(0), problem.heads, problem.q.size(2), problem.k.size(2)};
  const auto on_device = [&](const char* name, const Tensor& x) {
    check(x.device() == q.device(), "{}: {} must be on the device of q ({}), got {}", op, name,
          q.device(), x.device());
  };
  if (mask.allowed_pairs.defined()) {
    on_device("mask.allowed_pairs", mask.allowed_pairs);
    check(mask.allowed_pairs.dtype() == DType::boolean,
          "{}: mask.allowed_pairs must be bool, got {}", op, mask.allowed_pairs.dtype());
    problem.allowed = broadcast(op, "mask.allowed_pairs", mask.allowed_pairs, pairs);
  }
  if (mask.global_positions.defined()) {
    on_device("mask.global_positions", mask.global_positions);
    check(mask.global_positions.dtype() == DType::boolean && mask.global_positions.rank() <= 2,
          "{}: mask.global_positions must be bool [Sk] or [B, Sk], got {} {}", op,
          mask.global_positions.dtype(), mask.global_positions.shape());
    problem.global_positions =
        broadcast(op, "mask.global_positions", mask.global_positions, {pairs[0], pairs[3]});
  }
  if (mask.global_first >= problem.k.size(2)) problem.left = problem.right = -1;
  if (problem.left < 0 && problem.right < 0) {
    problem.global_positions = {};  // nothing to be exempt from
  } else {
    problem.global_first = mask.global_first;
  }
  resolve_bias(op, options.bias, pairs, packed, problem);
  if (options.sinks.defined()) {
    on_device("sinks", options.sinks);
    check(options.sinks.dtype() == DType::f32 && options.sinks.shape() == Shape{problem.heads},
          "{}: sinks must be f32 [{}], got {} {}", op, problem.heads, options.sinks.dtype(),
          options.sinks.shape());
    problem.sinks = contiguous(options.sinks);
  }
  return problem;
}

void check_attention_grads(const AttentionOutputGrads& grads, const AttentionForward& forward,
                           const AttentionProblem& problem, bool packed) {
  const std::int64_t batch = problem.q.size(0), rows = problem.q.size(2);
  const Shape out = packed ? Shape{rows, problem.heads, problem.value_size}
                           : Shape{batch, problem.heads, rows, problem.value_size};
  const Shape lse = packed ? Shape{problem.heads, rows} : Shape{batch, problem.heads, rows};
  check(forward.out.shape() == out && forward.lse.shape() == lse &&
            forward.out.dtype() == problem.q.dtype() && forward.lse.dtype() == DType::f32,
        "attention_backward: forward holds out {} and lse {}, expected {} and {}",
        forward.out.shape(), forward.lse.shape(), out, lse);
  check(grads.out.defined(), "attention_backward: the gradient of out is undefined");
  check(grads.out.shape() == out && grads.out.dtype() == problem.q.dtype(),
        "attention_backward: the gradient of out must be {} {}, got {} {}", problem.q.dtype(), out,
        grads.out.dtype(), grads.out.shape());
  check(!grads.entropy.defined() || forward.statistics.entropy.defined(),
        "attention_backward: a gradient of entropy needs a forward with Statistics::entropy");
}

}  // namespace qkv

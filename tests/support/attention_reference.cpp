#include "support/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/values.h"

namespace qkv::test {
namespace {

// x seen as [B, H, Sq, Sk] with stride 0 where it repeats.
Broadcast broadcast(const Tensor& x) {
  Broadcast result;
  if (!x.defined()) return result;
  result.values = values_of(x);
  std::int64_t step = 1;
  for (int axis = -1; axis >= -x.rank(); --axis) {
    result.strides[static_cast<std::size_t>(axis + 4)] = x.size(axis) == 1 ? 0 : step;
    step *= x.size(axis);
  }
  return result;
}

std::vector<ReferenceSequence> sequences_of(const Tensor& q, const Tensor& k, const Mask& mask) {
  std::vector<ReferenceSequence> sequences;
  if (mask.query_offsets.defined()) {
    const auto qo = mask.query_offsets.to_vector<std::int32_t>();
    const auto ko = mask.key_offsets.defined() ? mask.key_offsets.to_vector<std::int32_t>() : qo;
    for (std::size_t b = 0; b + 1 < qo.size(); ++b) {
      sequences.push_back({.q_start = qo[b],
                           .k_start = ko[b],
                           .q_rows = qo[b + 1] - qo[b],
                           .k_rows = ko[b + 1] - ko[b]});
    }
  } else {
    sequences.assign(static_cast<std::size_t>(q.size(0)),
                     {.q_rows = q.size(2), .k_rows = k.size(2)});
  }
  const auto given = [](const Tensor& x, std::size_t b) {
    return std::int64_t{x.to_vector<std::int32_t>()[b]};
  };
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    ReferenceSequence& s = sequences[b];
    s.q_length = mask.query_lengths.defined() ? given(mask.query_lengths, b) : s.q_rows;
    s.k_length = mask.key_lengths.defined() ? given(mask.key_lengths, b) : s.k_rows;
    s.offset = mask.align == Align::top_left ? 0 : s.k_length - s.q_length;
    if (mask.offset) s.offset = *mask.offset;
    if (mask.offset_per_sequence.defined()) s.offset = given(mask.offset_per_sequence, b);
  }
  return sequences;
}

void set_bias(const Bias& bias, ReferenceProblem& p) {
  p.bias = broadcast(bias.values);
  if (bias.slopes.defined()) {
    p.slopes.values = values_of(bias.slopes);
    const bool per_sequence = bias.slopes.rank() == 2 && bias.slopes.size(0) > 1;
    p.slopes.strides = {per_sequence ? p.heads : 0, p.heads > 1 ? 1 : 0, 0, 0};
  }
  if (bias.table.defined()) {
    p.table = values_of(bias.table);
    for (const ReferenceSequence& s : p.sequences) {
      p.farthest = std::max(p.farthest, s.q_rows + s.k_rows + std::abs(s.offset));
    }
    for (std::int64_t relative = -p.farthest; relative <= p.farthest; ++relative) {
      p.bucket_at.push_back(
          t5_bucket(relative, bias.table.size(0), bias.bidirectional, bias.max_distance));
    }
  }
}

}  // namespace

std::int64_t ReferenceProblem::q_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
  if (packed) return (sequences[static_cast<std::size_t>(b)].q_start + i) * heads + h;
  return (b * heads + h) * q_rows + i;
}
std::int64_t ReferenceProblem::k_row(std::int64_t b, std::int64_t h, std::int64_t j) const {
  const std::int64_t key_head = h / (heads / key_heads);
  if (packed) return (sequences[static_cast<std::size_t>(b)].k_start + j) * key_heads + key_head;
  return (b * key_heads + key_head) * k_rows + j;
}
std::int64_t ReferenceProblem::lse_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
  if (packed) return h * q_rows + sequences[static_cast<std::size_t>(b)].q_start + i;
  return (b * heads + h) * q_rows + i;
}
std::int64_t ReferenceProblem::received_row(std::int64_t b, std::int64_t h, std::int64_t j) const {
  if (packed) return h * k_rows + sequences[static_cast<std::size_t>(b)].k_start + j;
  return (b * heads + h) * k_rows + j;
}

ReferenceProblem reference_problem(const AttentionInputs& in) {
  const AttentionOptions& o = in.options;
  ReferenceProblem p;
  p.dtype = in.q.dtype();
  p.packed = o.mask.query_offsets.defined();
  p.heads = in.q.size(1);
  p.key_heads = in.k.size(1);
  p.head_size = in.q.size(-1);
  p.value_size = in.v.size(-1);
  p.q_rows = in.q.size(p.packed ? 0 : 2);
  p.k_rows = in.k.size(p.packed ? 0 : 2);
  p.sequences = sequences_of(in.q, in.k, o.mask);
  p.q = values_of(in.q);
  p.k = values_of(in.k);
  p.v = values_of(in.v);
  p.dout = values_of(in.dout);
  p.dlse = values_of(in.dlse);
  p.dentropy = values_of(in.dentropy);
  p.causal = o.mask.causal_part;
  p.left = o.mask.left;
  p.right = o.mask.right;
  p.allowed = broadcast(o.mask.allowed_pairs);
  if (o.mask.global_positions.defined()) {
    p.global = values_of(
        expand(o.mask.global_positions, {static_cast<std::int64_t>(p.sequences.size()), p.k_rows}));
  }
  for (std::size_t b = 0; b < p.sequences.size() && o.mask.global_first > 0; ++b) {
    p.global.resize(p.sequences.size() * static_cast<std::size_t>(p.k_rows));
    const auto first = p.global.begin() + static_cast<std::ptrdiff_t>(b) * p.k_rows;
    std::fill_n(first, std::min(o.mask.global_first, p.k_rows), 1.0);
  }
  set_bias(o.bias, p);
  p.sinks = values_of(o.sinks);
  p.scale = o.scale ? double{*o.scale} : 1 / std::sqrt(static_cast<double>(p.head_size));
  p.softcap = o.softcap;
  p.dropout = o.dropout;
  p.seed = o.seed;
  return p;
}

bool visible(const ReferenceProblem& p, std::int64_t b, std::int64_t h, std::int64_t i,
             std::int64_t j) {
  const ReferenceSequence& s = p.sequences[static_cast<std::size_t>(b)];
  const std::int64_t position = i + s.offset;
  if (i >= s.q_length || j >= s.k_length) return false;
  if (p.causal && j > position) return false;
  const bool inside =
      (p.left < 0 || j >= position - p.left) && (p.right < 0 || j <= position + p.right);
  const auto is_global = [&](std::int64_t at) {
    return !p.global.empty() && at >= 0 && at < p.k_rows &&
           p.global[static_cast<std::size_t>(b * p.k_rows + at)] != 0;
  };
  if (!inside && !is_global(position) && !is_global(j)) return false;
  return !p.allowed.defined() || p.allowed.values[p.allowed.index(b, h, i, j)] != 0;
}

double bias_of(const ReferenceProblem& p, std::int64_t b, std::int64_t h, std::int64_t i,
               std::int64_t j) {
  const std::int64_t relative = j - (i + p.sequences[static_cast<std::size_t>(b)].offset);
  if (p.bias.defined()) return p.bias.values[p.bias.index(b, h, i, j)];
  if (p.slopes.defined()) {
    return -p.slopes.values[p.slopes.index(b, h, 0, 0)] * static_cast<double>(std::abs(relative));
  }
  if (p.table.empty()) return 0;
  return p.table[static_cast<std::size_t>(bucket_of(p, b, i, j) * p.heads + h)];
}

std::int64_t bucket_of(const ReferenceProblem& p, std::int64_t b, std::int64_t i, std::int64_t j) {
  const std::int64_t relative = j - (i + p.sequences[static_cast<std::size_t>(b)].offset);
  return p.bucket_at[static_cast<std::size_t>(relative + p.farthest)];
}

bool kept_by_dropout(const ReferenceProblem& p, std::int64_t b, std::int64_t h, std::int64_t i,
                     std::int64_t j) {
  // Seven rounds of Philox, written down once more: word (j / 8) % 4 of it, its half (i / 8) % 2.
  std::uint64_t c[4] = {static_cast<std::uint64_t>(j / 32 * 8 + j % 8),
                        static_cast<std::uint64_t>(i / 16 * 8 + i % 8),
                        static_cast<std::uint64_t>(h), static_cast<std::uint64_t>(b)};
  std::uint64_t key[2] = {p.seed & 0xffffffff, p.seed >> 32};
  for (int round = 0; round < 7; ++round) {
    const std::uint64_t first = 0xD2511F53u * c[0], second = 0xCD9E8D57u * c[2];
    const std::uint64_t next[4] = {second >> 32 ^ c[1] ^ key[0], second & 0xffffffff,
                                   first >> 32 ^ c[3] ^ key[1], first & 0xffffffff};
    std::copy_n(next, 4, c);
    key[0] = (key[0] + 0x9E3779B9u) & 0xffffffff;
    key[1] = (key[1] + 0xBB67AE85u) & 0xffffffff;
  }
  const std::uint64_t bits = c[j / 8 % 4] >> (i / 8 % 2 * 16) & 0xffff;
  return bits >= static_cast<std::uint64_t>(std::lround(p.dropout * 65536));
}

std::int64_t t5_bucket(std::int64_t relative, std::int64_t buckets, bool bidirectional,
                       std::int64_t max_distance) {
  std::int64_t first = 0;
  std::int64_t distance = relative < 0 ? -relative : 0;
  if (bidirectional) {
    buckets /= 2;
    if (relative > 0) first = buckets;
    distance = std::abs(relative);
  }
  const std::int64_t exact = buckets / 2;
  if (distance < exact) return first + distance;
  // The n-th of the remaining buckets begins where distance / exact reaches
  // (max_distance / exact) ^ (n / steps). The published code finds n with f32 logarithms; on a
  // boundary, which only powers reach, they land on the integer: hence the small push upwards.
  const std::int64_t steps = buckets - exact;
  const double ratio = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const auto step = static_cast<std::int64_t>(ratio * static_cast<double>(steps) + 1e-9);
  return first + std::min(exact + step, buckets - 1);
}

}  // namespace qkv::test

// Masks and biases: how they are made and combined.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "qkv/attention.h"

namespace qkv {
namespace {

std::int64_t tighter(std::int64_t a, std::int64_t b) {  // -1 = unbounded
  if (a < 0 || b < 0) return std::max(a, b);
  return std::min(a, b);
}

void take_one(const char* name, Tensor& mine, const Tensor& other) {
  if (!other.defined()) return;
  check(!mine.defined() || mine.raw() == other.raw(),
        "mask: both sides of & have {}; combine them into one tensor first", name);
  mine = other;
}

}  // namespace

Mask Mask::causal(Align align) {
  Mask m;
  m.causal_part = true;
  m.align = align;
  return m;
}
Mask Mask::window(std::int64_t left, std::int64_t right) {
  check(left >= -1 && right >= -1,
        "Mask::window: expected (left, right) with -1 for unbounded, got ({}, {})", left, right);
  Mask m;
  m.left = left;
  m.right = right;
  return m;
}
Mask Mask::lengths(Tensor keys, Tensor queries) {
  Mask m;
  m.key_lengths = std::move(keys);
  m.query_lengths = std::move(queries);
  return m;
}
Mask Mask::packed(Tensor query_offsets, Tensor key_offsets) {
  Mask m;
  m.query_offsets = std::move(query_offsets);
  m.key_offsets = std::move(key_offsets);
  return m;
}
Mask Mask::allowed(Tensor pairs) {
  Mask m;
  m.allowed_pairs = std::move(pairs);
  return m;
}
Mask Mask::global(Tensor positions) {
  Mask m;
  m.global_positions = std::move(positions);
  return m;
}
Mask Mask::global(std::int64_t count) {
  check(count >= 0, "Mask::global: the number of positions must not be negative, got {}", count);
  Mask m;
  m.global_first = count;
  return m;
}
Mask Mask::at_offset(std::int64_t offset) {
  Mask m;
  m.offset = offset;
  return m;
}
Mask Mask::at_offset(Tensor per_sequence) {
  Mask m;
  m.offset_per_sequence = std::move(per_sequence);
  return m;
}

Mask operator&(const Mask& a, const Mask& b) {
  Mask m = a;
  m.causal_part = a.causal_part || b.causal_part;
  m.left = tighter(a.left, b.left);
  m.right = tighter(a.right, b.right);
  // top_left is a choice, bottom_right the default: the choice wins.
  if (b.align == Align::top_left) m.align = Align::top_left;
  check(!a.offset || !b.offset || *a.offset == *b.offset,
        "mask: both sides of & have an offset, {} and {}", a.offset.value_or(0),
        b.offset.value_or(0));
  if (b.offset) m.offset = b.offset;
  take_one("offset_per_sequence", m.offset_per_sequence, b.offset_per_sequence);
  take_one("key_lengths", m.key_lengths, b.key_lengths);
  take_one("query_lengths", m.query_lengths, b.query_lengths);
  take_one("query_offsets", m.query_offsets, b.query_offsets);
  take_one("key_offsets", m.key_offsets, b.key_offsets);
  take_one("allowed_pairs", m.allowed_pairs, b.allowed_pairs);
  take_one("global_positions", m.global_positions, b.global_positions);
  m.global_first = std::max(a.global_first, b.global_first);
  return m;
}

Bias Bias::tensor(Tensor values) {
  Bias b;
  b.values = std::move(values);
  return b;
}
Bias Bias::fixed(Tensor values) {
  Bias b = tensor(std::move(values));
  b.gradient = false;
  return b;
}
Bias Bias::alibi(Tensor slopes) {
  Bias b;
  b.slopes = std::move(slopes);
  return b;
}
Bias Bias::relative(Tensor table, bool bidirectional, std::int64_t max_distance) {
  Bias b;
  b.table = std::move(table);
  b.bidirectional = bidirectional;
  b.max_distance = max_distance;
  return b;
}

std::int64_t relative_bucket(std::int64_t relative, std::int64_t buckets, bool bidirectional,
                             std::int64_t max_distance) {
  // Every table that attention takes is of this kind; farther than this is as far as this.
  constexpr std::int64_t kFarthest = std::numeric_limits<std::int64_t>::max();
  relative = std::max(relative, -kFarthest);
  check(buckets >= (bidirectional ? 4 : 2) && max_distance > buckets / (bidirectional ? 4 : 2),
        "relative_bucket: {} buckets up to a distance of {}: expected at least {}, and a distance "
        "beyond those with a bucket each",
        buckets, max_distance, bidirectional ? 4 : 2);
  std::int64_t bucket = 0;
  std::int64_t distance = -relative;  // keys before the query are at positive distance
  if (bidirectional) {
    buckets /= 2;
    if (relative > 0) bucket = buckets;
    distance = std::abs(relative);
  }
  distance = std::max<std::int64_t>(distance, 0);
  const std::int64_t exact = buckets / 2;  // one bucket each; beyond, buckets grow as a logarithm
  if (distance < exact) return bucket + distance;
  const float ratio =
      std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  // Compared before it is converted: beyond max_distance it may be larger than any integer.
  const float step = ratio * static_cast<float>(buckets - exact);
  if (!(step < static_cast<float>(buckets - exact))) return bucket + buckets - 1;
  return bucket + std::min(exact + static_cast<std::int64_t>(step), buckets - 1);
}

}  // namespace qkv

#include "support/attention_case.h"

#include <limits>

#include "core/backend.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/values.h"

namespace qkv::test {
namespace {

Shape shape_of(const Extents& extents) { return Shape(std::span<const std::int64_t>(extents)); }

Tensor random_booleans(Generator& random, const Extents& extents, float share) {
  const Tensor drawn = random.uniform(shape_of(extents));
  Tensor result = Tensor::empty(drawn.shape(), {DType::boolean});
  const float* from = drawn.data<float>();
  bool* to = result.data<bool>();
  for (std::int64_t i = 0; i < drawn.numel(); ++i) to[i] = from[i] < share;
  return result;
}

Tensor random_bias(Generator& random, const AttentionCase& c, DType dtype) {
  Tensor values = random.normal(shape_of(c.bias), c.bias_shift);
  if (c.bias_hides) {
    const Tensor drawn = random.uniform(values.shape());
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      if (drawn.data<float>()[i] < 0.25f) {
        values.data<float>()[i] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  return to(values, c.bias_dtype.value_or(dtype));
}

void set_mask(Generator& random, const AttentionCase& c, Mask& mask) {
  mask.causal_part = c.causal;
  mask.left = c.left;
  mask.right = c.right;
  mask.align = c.align;
  mask.offset = c.offset;
  const auto set = [](Tensor& x, const std::vector<std::int32_t>& values) {
    if (!values.empty()) x = i32_tensor(values);
  };
  set(mask.offset_per_sequence, c.offset_per_sequence);
  set(mask.key_lengths, c.key_lengths);
  set(mask.query_lengths, c.query_lengths);
  set(mask.query_offsets, c.query_offsets);
  set(mask.key_offsets, c.key_offsets);
  if (!c.allowed.empty()) mask.allowed_pairs = random_booleans(random, c.allowed, 0.75f);
  if (!c.global.empty()) mask.global_positions = random_booleans(random, c.global, 0.125f);
  mask.global_first = c.global_first;
}

AttentionOptions make_options(Generator& random, const AttentionCase& c, DType dtype) {
  AttentionOptions options;
  options.scale = c.scale;
  options.softcap = c.softcap;
  options.dropout = c.dropout;
  options.seed = c.seed;
  options.statistics = c.statistics;
  options.deterministic = c.deterministic;
  set_mask(random, c, options.mask);
  if (c.sinks) options.sinks = random.normal({c.heads});
  if (!c.bias.empty()) options.bias.values = random_bias(random, c, dtype);
  if (!c.slopes.empty()) options.bias.slopes = random.uniform(shape_of(c.slopes), 0.05f, 0.5f);
  if (c.buckets > 0) {
    options.bias.table = random.normal({c.buckets, c.heads});
    options.bias.bidirectional = c.bidirectional;
    options.bias.max_distance = c.max_distance;
  }
  options.bias.gradient = c.bias_gradient;
  return options;
}

// The first of a batch and of the heads, seen as all of them.
Tensor expanded_over_heads(const Tensor& x) {
  Tensor one = x;
  for (int axis = 0; axis < 2; ++axis)
    one = slice(one, axis, 0, std::min<std::int64_t>(1, x.size(axis)));
  return expand(laid_out(one, Layout::row_major), x.shape());
}

}  // namespace

Tensor laid_out(const Tensor& x, Layout layout) {
  const int rank = x.rank();
  std::vector<std::int64_t> strides(static_cast<std::size_t>(rank));
  // Axes from the innermost in memory to the outermost, the gap after each, and the first step.
  std::vector<int> order;
  for (int axis = rank - 1; axis >= 0; --axis) order.push_back(axis);
  std::int64_t step = 1, gap = 0;
  if (layout == Layout::heads_inside && rank == 4) order = {3, 1, 2, 0};
  if (layout == Layout::scattered) {
    step = 2;
    gap = 3;
    if (rank == 4) order = {3, 0, 2, 1};
  }
  for (const int axis : order) {
    strides[static_cast<std::size_t>(axis)] = step;
    step = step * std::max<std::int64_t>(x.size(axis), 1) + gap;
  }
  Tensor result = Tensor::full({step + gap}, kNan, {x.dtype()}).view(x.shape(), strides, gap);
  backend(kCpu).copy(x, result);
  return result;
}

AttentionInputs make_inputs(const AttentionCase& c, DType dtype) {
  Generator random(c.data);
  const bool packed = !c.query_offsets.empty();
  const std::int64_t value_size = c.value_size > 0 ? c.value_size : c.head_size;
  const std::int64_t queries = packed ? c.query_offsets.back() : c.queries;
  const auto& key_offsets = c.key_offsets.empty() ? c.query_offsets : c.key_offsets;
  const std::int64_t keys = packed ? key_offsets.back() : c.keys;
  const auto draw = [&](std::int64_t heads, std::int64_t rows, std::int64_t size, float deviation) {
    const Shape shape = packed ? Shape{rows, heads, size} : Shape{c.batch, heads, rows, size};
    return random.normal(shape, 0, deviation, dtype);
  };
  AttentionInputs in;
  in.q = laid_out(draw(c.heads, queries, c.head_size, c.deviation), c.layout);
  in.k = laid_out(draw(c.key_heads, keys, c.head_size, c.deviation), c.layout);
  in.v = laid_out(draw(c.key_heads, keys, value_size, 1), c.layout);
  in.dout = laid_out(draw(c.heads, queries, value_size, 1), c.layout);
  if (c.layout == Layout::expanded && !packed) {
    in.k = expanded_over_heads(in.k);
    in.v = expanded_over_heads(in.v);
  }
  const Shape rows = packed ? Shape{c.heads, queries} : Shape{c.batch, c.heads, queries};
  if (c.dlse) in.dlse = random.normal(rows);
  if (c.dentropy) in.dentropy = random.normal(rows);
  in.options = make_options(random, c, dtype);
  if (c.dentropy) in.options.statistics = in.options.statistics | Statistics::entropy;
  return in;
}

}  // namespace qkv::test

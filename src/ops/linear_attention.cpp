#include "qkv/linear_attention.h"

#include <algorithm>

#include "core/backend.h"
#include "ops/causal_sums.h"
#include "ops/checks.h"
#include "ops/linear_sums.h"
#include "ops/matmul_f32.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

constexpr double kLeastSum = 1e-30;

struct Parts {
  Tensor queries, keys, values;
};

}  // namespace

void check_parts(const Tensor& queries, const Tensor& keys, const Tensor& values) {
  check_floating("linear_attention", "queries", queries);
  check_floating("linear_attention", "keys", keys);
  check_floating("linear_attention", "values", values);
  check(queries.rank() == 4 && keys.rank() == 4 && values.rank() == 4 &&
            queries.size(0) == keys.size(0) && keys.size(0) == values.size(0) &&
            keys.size(1) == values.size(1) && keys.size(2) == values.size(2) &&
            queries.size(3) == keys.size(3),
        "linear_attention: queries [B, H, Sq, F], keys [B, Hk, Sk, F] and values [B, Hk, Sk, Dv] "
        "are needed, got {}, {} and {}",
        queries.shape(), keys.shape(), values.shape());
  const std::int64_t heads = queries.size(1), key_heads = keys.size(1);
  check(key_heads > 0 && heads % key_heads == 0,
        "linear_attention: {} heads are not a multiple of {} key heads", heads, key_heads);
}

void check_causal(const Tensor& queries, const Tensor& keys, bool causal) {
  check(!causal || queries.size(2) == keys.size(2),
        "linear_attention: causal needs as many queries as keys, got {} and {}", queries.shape(),
        keys.shape());
}

namespace {

// [B, Hk, ...] with a head for every query head.
Tensor spread(const Tensor& x, std::int64_t heads) {
  const std::int64_t b = x.size(0), key_heads = x.size(1), s = x.size(2), d = x.size(3);
  if (heads == key_heads) return x;
  const Tensor by_group = reshape(x, {b, key_heads, 1, s, d});
  return reshape(expand(by_group, {b, key_heads, heads / key_heads, s, d}), {b, heads, s, d});
}

// A key head for every query head. f16 would overflow in sums of weights, so it becomes f32.
Parts arranged(const Tensor& queries, const Tensor& keys, const Tensor& values) {
  check_parts(queries, keys, values);
  const std::int64_t heads = queries.size(1);
  const auto wide = [](const Tensor& x) { return x.dtype() == DType::f16 ? to(x, DType::f32) : x; };
  return {wide(queries), spread(wide(keys), heads), spread(wide(values), heads)};
}

// Values and a column of ones: the sum of weights comes with the weighted sum. Columns of zeros up
// to a multiple of 8, which products in 16 bits need to be fast. What is added is one row for all,
// so that it is copied as a run.
Tensor with_ones(const Tensor& values) {
  constexpr std::int64_t kMultiple = 8;
  const std::int64_t added = kMultiple - values.size(3) % kMultiple;
  Tensor columns;
  {
    const TapePause pause;
    const Tensor row = Tensor::zeros({1, 1, 1, added}, {values.dtype(), values.device()});
    Tensor first = slice(row, 3, 0, 1);
    backend(values.device()).fill(first, 1);
    columns = expand(row, {values.size(0), values.size(1), values.size(2), added});
  }
  return concat({values, columns}, 3);
}

// The same sums for every query head of a key head: those of the first.
Tensor by_key_head(const Tensor& x, std::int64_t key_heads) {
  const std::int64_t b = x.size(0), heads = x.size(1), s = x.size(2), d = x.size(3);
  if (heads == key_heads) return x;
  const Tensor by_group = reshape(x, {b, key_heads, heads / key_heads, s, d});
  return reshape(slice(by_group, 2, 0, 1), {b, key_heads, s, d});
}

Tensor decayed(const Tensor& sums, const Tensor& decay) {
  if (!sums.defined() || !decay.defined()) return sums;
  return mul(sums, reshape(decay, {sums.size(0), sums.size(1), 1, 1}));
}

Tensor divide_rows(const Tensor& x, const Tensor& by, DType dtype) {
  Tensor y = Tensor::empty(x.shape(), {dtype, x.device()});
  if (y.numel() > 0) backend(x.device()).divide_rows(x, by, y);
  return y;
}

// The weighted sums f32 [..., W] divided by the sums of weights, which follow the first `width`
// columns: [..., width].
Tensor divided(const Tensor& given, std::int64_t width, DType dtype) {
  const Tensor sums = contiguous(given);
  const std::int64_t all = given.size(-1), rows = sums.numel() / all;
  std::vector<std::int64_t> extents(given.shape().extents().begin(), given.shape().extents().end());
  Tensor y, totals;
  {
    const TapePause pause;
    const Tensor flat = reshape(sums, {rows, all});
    const Tensor least = Tensor::full({1}, kLeastSum, {DType::f32, sums.device()});
    totals = reshape(add(slice(flat, 1, width, width + 1), least), {rows});
    extents.back() = width;
    y = reshape(divide_rows(slice(flat, 1, 0, width), totals, dtype), extents);
  }
  // d(a / t) = da / t - (a / t) dt / t
  return Tape::record("divided", {sums}, y, [sums, totals, y, rows, width, all](const Tensor& dy) {
    const Tensor shares = divide_rows(reshape(contiguous(dy), {rows, width}), totals, DType::f32);
    const Tensor of_totals = sum(mul(shares, reshape(y, {rows, width})), {1}, true);
    const Tensor rest = Tensor::zeros({1, 1}, {DType::f32, y.device()});
    std::vector<Tensor> parts{shares, scale(of_totals, -1)};
    if (all > width + 1) parts.push_back(expand(rest, {rows, all - width - 1}));
    return std::vector{reshape(
        concat(parts, 1),
        std::vector<std::int64_t>(sums.shape().extents().begin(), sums.shape().extents().end()))};
  });
}

}  // namespace

void add_keys(const KeyFeatures& keys, const Tensor& given_values, LinearState& state) {
  const auto [unused, features, values] = arranged(keys.features, keys.features, given_values);
  const Tensor fresh = matmul_f32(transpose(features, 2, 3), with_ones(values));
  const Tensor past = state.sums;
  check(!past.defined() || past.shape() == fresh.shape(),
        "linear_attention: the state is {}, these keys and values make {}: it is of another model "
        "or batch",
        past.shape(), fresh.shape());
  state.sums = past.defined() ? add(decayed(past, keys.decay), fresh) : fresh;
}

Tensor attend_to_sums(const Tensor& queries, const Tensor& sums, std::int64_t width) {
  const DType dtype = queries.dtype() == DType::bf16 ? DType::bf16 : DType::f32;
  const Tensor seen = spread(to(sums, dtype), queries.size(1));
  return divided(matmul_f32(queries, seen), width, queries.dtype());
}

Tensor attend_in_order(const Tensor& queries, const KeyFeatures& keys, const Tensor& values,
                       LinearState& state) {
  const Parts x = arranged(queries, keys.features, values);
  check_causal(queries, keys.features, true);
  const Tensor past = decayed(state.sums, keys.decay);
  const CausalSums sums = causal_sums(x.queries, x.keys, with_ones(x.values),
                                      past.defined() ? spread(past, queries.size(1)) : Tensor());
  state.sums = by_key_head(sums.carry, keys.features.size(1));
  return divided(sums.y, values.size(3), queries.dtype());
}

Tensor linear_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        bool causal) {
  check_parts(queries, keys, values);
  check_causal(queries, keys, causal);
  LinearState state;
  if (causal) return attend_in_order(queries, {keys, {}, {}}, values, state);
  add_keys({keys, {}, {}}, values, state);
  return attend_to_sums(queries, state.sums, values.size(3));
}

Tensor linear_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        const Tensor& decay, LinearState& state) {
  const TapePause pause;
  check_parts(queries, keys, values);
  check_causal(queries, keys, true);
  if (keys.size(2) != 1) return attend_in_order(queries, {keys, {}, decay}, values, state);
  add_keys({keys, {}, decay}, values, state);
  return attend_to_sums(queries, state.sums, values.size(3));
}

Tensor linear_attention_weights(const Tensor& queries, const Tensor& keys, bool causal) {
  const TapePause pause;
  const Parts x = arranged(to(queries, DType::f32), to(keys, DType::f32), to(keys, DType::f32));
  check_causal(queries, keys, causal);
  Tensor weights = matmul(x.queries, transpose(x.keys, 2, 3));
  if (causal) {
    Tensor square = reshape(weights, {-1, weights.size(2), weights.size(3)});
    backend(weights.device()).keep_triangle(square, false, square);
  }
  const std::int64_t keys_seen = weights.size(3);
  const Tensor flat = reshape(weights, {-1, keys_seen});
  const Tensor least = Tensor::full({1}, kLeastSum, {DType::f32, weights.device()});
  const Tensor totals = reshape(add(sum(flat, {1}, true), least), {flat.size(0)});
  return reshape(divide_rows(flat, totals, DType::f32),
                 {weights.size(0), weights.size(1), weights.size(2), keys_seen});
}

}  // namespace qkv

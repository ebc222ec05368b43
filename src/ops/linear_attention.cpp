#include "qkv/linear_attention.h"

#include <algorithm>

#include "core/backend.h"
#include "ops/checks.h"
#include "qkv/autograd.h"
#include "qkv/ops.h"

namespace qkv {
namespace {

constexpr double kLeastSum = 1e-30;

struct Parts {
  Tensor queries, keys, values;
};

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

// Values and a column of ones: the sum of weights comes with the weighted sum.
Tensor with_ones(const Tensor& values) {
  const Tensor ones = Tensor::full({values.size(0), values.size(1), values.size(2), 1}, 1,
                                   {values.dtype(), values.device()});
  return concat({values, ones}, 3);
}

Tensor divide_rows(const Tensor& x, const Tensor& by) {
  Tensor y = Tensor::empty(x.shape(), {x.dtype(), x.device()});
  if (y.numel() > 0) backend(x.device()).divide_rows(x, by, y);
  return y;
}

// The weighted sums [..., W + 1] divided by the sums of weights, their last column: [..., W].
Tensor divided(const Tensor& given) {
  const std::int64_t width = given.size(-1) - 1;
  const Tensor sums = contiguous(given);
  const std::int64_t rows = sums.numel() / (width + 1);
  std::vector<std::int64_t> extents(given.shape().extents().begin(), given.shape().extents().end());
  Tensor y, totals;
  {
    const TapePause pause;
    const Tensor flat = reshape(sums, {rows, width + 1});
    const Tensor least = Tensor::full({1}, kLeastSum, {DType::f32, sums.device()});
    totals = reshape(add(to(slice(flat, 1, width, width + 1), DType::f32), least), {rows});
    extents.back() = width;
    y = reshape(divide_rows(slice(flat, 1, 0, width), totals), extents);
  }
  // d(a / t) = da / t - (a / t) dt / t
  return Tape::record("divided", {sums}, y, [sums, totals, y, rows, width](const Tensor& dy) {
    const Tensor d = to(reshape(contiguous(dy), {rows, width}), DType::f32);
    const Tensor shares = divide_rows(d, totals);
    const Tensor of_totals = sum(mul(shares, reshape(y, {rows, width})), {1}, true);
    const Tensor both = concat({shares, scale(of_totals, -1)}, 1);
    return std::vector{to(reshape(both, std::vector<std::int64_t>(sums.shape().extents().begin(),
                                                                  sums.shape().extents().end())),
                          sums.dtype())};
  });
}

void check_causal(const Tensor& queries, const Tensor& keys, bool causal) {
  check(!causal || queries.size(2) == keys.size(2),
        "linear_attention: causal needs as many queries as keys, got {} and {}", queries.shape(),
        keys.shape());
}

Tensor to_f32(const Tensor& x) { return to(x, DType::f32); }

// Puts keys and values into the sums; returns what the sums were, relative to the new exponent.
Tensor add_keys(const KeyFeatures& keys, const Tensor& values, LinearState& state) {
  const Tensor fresh = matmul(transpose(to_f32(keys.features), 2, 3), with_ones(to_f32(values)));
  Tensor past = state.sums;
  check(!past.defined() || past.shape() == fresh.shape(),
        "linear_attention: the state is {}, these keys and values make {}: it is of another model "
        "or batch",
        past.shape(), fresh.shape());
  if (past.defined() && keys.decay.defined()) {
    past = mul(past, reshape(keys.decay, {fresh.size(0), fresh.size(1), 1, 1}));
  }
  state.sums = past.defined() ? add(past, fresh) : fresh;
  return past;
}

// Features of a segment that stay in a processor's cache, or fill a GPU; f32.
std::int64_t segment_rows(const Tensor& q, const Tensor& directions) {
  constexpr std::int64_t kInCache = std::int64_t{1} << 19, kOnGpu = std::int64_t{1} << 26;
  const std::int64_t each = std::max<std::int64_t>(1, q.size(0) * q.size(1) * directions.size(0));
  return std::max<std::int64_t>(128, (q.device() == kCpu ? kInCache : kOnGpu) / each);
}

struct PerformerCall {
  const Tensor &q, &k, &v, &directions;
  const FeatureOptions& options;
  bool causal;
};

// Keys go into sums and queries through them, a segment at a time.
Tensor in_segments(const PerformerCall& call, std::int64_t rows) {
  Tensor out = Tensor::empty({call.q.size(0), call.q.size(1), call.q.size(2), call.v.size(3)},
                             {call.q.dtype(), call.q.device()});
  LinearState state;
  const auto for_segments = [&](std::int64_t length, auto&& use) {
    for (std::int64_t begin = 0; begin < length; begin += rows) {
      use([begin, end = std::min(length, begin + rows)](const Tensor& x) {
        return slice(x, 2, begin, end);
      });
    }
  };
  const auto keys_of = [&](auto&& cut) {
    FeatureOptions options = call.options;
    if (options.visible.defined()) options.visible = cut(options.visible);
    KeyFeatures keys = key_features(cut(call.k), call.directions, options, state.top);
    state.top = keys.top;
    return keys;
  };
  const auto queries_of = [&](auto&& cut) {
    return query_features(cut(call.q), call.directions, call.options);
  };
  const auto put = [&](const Tensor& part, Tensor there) {
    backend(out.device()).copy(part, there);
  };
  if (call.causal) {
    for_segments(call.k.size(2), [&](auto&& cut) {
      const KeyFeatures keys = keys_of(cut);
      put(linear_attention(queries_of(cut), keys.features, cut(call.v), keys.decay, state),
          cut(out));
    });
    return out;
  }
  for_segments(call.k.size(2), [&](auto&& cut) { add_keys(keys_of(cut), cut(call.v), state); });
  const Tensor sums = spread(state.sums, call.q.size(1));
  for_segments(call.q.size(2),
               [&](auto&& cut) { put(divided(matmul(to_f32(queries_of(cut)), sums)), cut(out)); });
  return out;
}

}  // namespace

Tensor linear_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        bool causal) {
  const Parts x = arranged(queries, keys, values);
  check_causal(queries, keys, causal);
  const Tensor wide = with_ones(x.values);
  const Tensor sums = causal ? causal_product(x.queries, x.keys, wide)
                             : matmul(x.queries, matmul(transpose(x.keys, 2, 3), wide));
  return to(divided(sums), queries.dtype());
}

Tensor linear_attention(const Tensor& queries, const Tensor& keys, const Tensor& values,
                        const Tensor& decay, LinearState& state) {
  const TapePause pause;
  const Parts x = arranged(to_f32(queries), to_f32(keys), to_f32(values));
  check_causal(queries, keys, true);
  const Tensor past = add_keys({keys, {}, decay}, values, state);
  const std::int64_t heads = queries.size(1);
  Tensor sums;
  if (keys.size(2) == 1) {
    sums = matmul(x.queries, spread(state.sums, heads));
  } else {
    sums = causal_product(x.queries, x.keys, with_ones(x.values));
    if (past.defined()) sums = add(sums, matmul(x.queries, spread(past, heads)));
  }
  return to(divided(sums), queries.dtype());
}

Tensor performer_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Tensor& directions, const FeatureOptions& options, bool causal) {
  check_parts(q, k, v);
  check_causal(q, k, causal);
  if (!Tape::recording() && k.size(2) > 0 && directions.defined() && directions.rank() == 2) {
    const std::int64_t rows = segment_rows(q, directions);
    if (std::max(q.size(2), k.size(2)) > rows) {
      return in_segments({q, k, v, directions, options, causal}, rows);
    }
  }
  return linear_attention(query_features(q, directions, options),
                          key_features(k, directions, options).features, v, causal);
}

Tensor linear_attention_weights(const Tensor& queries, const Tensor& keys, bool causal) {
  const TapePause pause;
  const Parts x = arranged(to(queries, DType::f32), to(keys, DType::f32), to(keys, DType::f32));
  check_causal(queries, keys, causal);
  Tensor weights = matmul(x.queries, transpose(x.keys, 2, 3));
  if (causal) {
    Tensor square = reshape(weights, {-1, weights.size(2), weights.size(3)});
    backend(weights.device()).keep_triangle(square, false);
  }
  const std::int64_t keys_seen = weights.size(3);
  const Tensor flat = reshape(weights, {-1, keys_seen});
  const Tensor least = Tensor::full({1}, kLeastSum, {DType::f32, weights.device()});
  const Tensor totals = reshape(add(sum(flat, {1}, true), least), {flat.size(0)});
  return reshape(divide_rows(flat, totals),
                 {weights.size(0), weights.size(1), weights.size(2), keys_seen});
}

}  // namespace qkv

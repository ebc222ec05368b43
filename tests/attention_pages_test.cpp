// Keys and values in pages are the keys and values: the same bits on the CPU, the contract's rule
// on a GPU, and an Error for a table that names what is not there.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/backend.h"
#include "expect_error.h"
#include "qkv/autograd.h"
#include "qkv/nn.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/attention_check.h"
#include "support/devices.h"
#include "support/values.h"

namespace qkv::test {
namespace {

class AttentionPages : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionPages, ::testing::ValuesIn(kFloats), dtype_name);

// A call with its keys and values spread over pages, in an order of their own. Pages of nobody, and
// what no key uses of the others, hold NaN; entries of the table that are not used name no page.
AttentionInputs in_pages(const AttentionInputs& in, std::int64_t page) {
  const std::int64_t batch = in.q.size(0), keys = in.k.size(2), each = (keys + page - 1) / page;
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch), static_cast<int>(keys));
  if (in.options.mask.key_lengths.defined()) {
    lengths = in.options.mask.key_lengths.to_vector<std::int32_t>();
  }
  const std::int64_t pool = batch * each + 3;
  AttentionInputs paged = in;
  const auto spread = [&](const Tensor& x) {
    return Tensor::full({pool, x.size(1), page, x.size(3)}, NAN, {x.dtype()});
  };
  paged.k = spread(in.k);
  paged.v = spread(in.v);
  std::vector<std::int32_t> table;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t n = 0; n < each; ++n) {
      const std::int64_t at = (7 * (b * each + n) + 3) % pool;  // 7 and pool share no factor
      const std::int64_t begin = n * page, end = std::min<std::int64_t>(begin + page, lengths[b]);
      table.push_back(begin < end ? static_cast<std::int32_t>(at) : -7);
      for (const auto& [from, to] : {std::pair{in.k, paged.k}, std::pair{in.v, paged.v}}) {
        if (begin >= end) continue;
        Tensor rows = slice(slice(to, 0, at, at + 1), 2, 0, end - begin);
        backend(kCpu).copy(slice(slice(from, 0, b, b + 1), 2, begin, end), rows);
      }
    }
  }
  paged.options.pages = Tensor::from(table, {batch, each});
  paged.options.mask.key_lengths = Tensor::from(lengths, {batch});
  return paged;
}

// A size of pages with which 7 goes round the whole pool.
std::int64_t without_factor_7(std::int64_t page, std::int64_t batch, std::int64_t keys) {
  while ((batch * ((keys + page - 1) / page) + 3) % 7 == 0) page *= 2;
  return page;
}

void check_pages(const AttentionCase& c, DType dtype) {
  const AttentionInputs in = make_inputs(c, dtype);
  const ReferenceResult exact = reference_exact(reference_problem(in));
  // The largest error of a few rows is luck: that of some draws counts.
  double out_limit = 0, lse_limit = 0;
  for (std::uint64_t draw = 0; draw < 4; ++draw) {
    AttentionCase other = c;
    other.data = c.data + draw;
    const ReferenceProblem problem = reference_problem(make_inputs(other, dtype));
    const ReferenceResult truth = reference_exact(problem), plain = reference_plain(problem);
    out_limit = std::max(out_limit, limit_of(truth.out, plain.out));
    lse_limit = std::max(lse_limit, limit_of(truth.lse, plain.lse));
  }
  const bool fits = !c.bias.empty() || !c.allowed.empty();  // these have the extent of Sk
  for (const std::int64_t wanted : {1, 24, 32, 64, 256, 512}) {
    const std::int64_t page = without_factor_7(wanted, c.batch, c.keys);
    if (fits && c.keys % page != 0) continue;
    SCOPED_TRACE(c.name + ", pages of " + std::to_string(page) + " " + to_string(dtype));
    const AttentionInputs paged = in_pages(in, page);
    for_each_target([&] {
      const AttentionForward ours = run_attention(paged, Pass::forward).forward;
      if (test_device() == kCpu) {
        const AttentionForward whole = run_attention(in, Pass::forward).forward;
        expect_same_bits("out", ours.out, whole.out);
        expect_same_bits("lse", ours.lse, whole.lse);
      }
      expect_close("out", ours.out, exact.out, out_limit);
      expect_close("lse", ours.lse, exact.lse, lse_limit);
    });
  }
}

TEST_P(AttentionPages, AreTheKeysAndValues) {
  using C = AttentionCase;
  const C base{.batch = 3, .heads = 6, .key_heads = 2, .queries = 1, .keys = 1536, .head_size = 64};
  const auto check = [&](std::string name, auto&& change) {
    C c = base;
    c.name = name;
    c.key_lengths = {1536, 1, 700};
    change(c);
    check_pages(c, GetParam());
  };
  check("lengths", [](C&) {});
  check("a length of 0", [](C& c) { c.key_lengths = {0, 1500, 3}, c.causal = true; });
  check("two queries", [](C& c) { c.queries = 2, c.causal = true; });
  check("window", [](C& c) { c.causal = true, c.left = 300; });
  check("softcap, head size 128", [](C& c) { c.softcap = 4, c.head_size = 128; });
  check("head size 40", [](C& c) { c.head_size = 40; });
  check("slopes", [](C& c) { c.causal = true, c.slopes = {6}; });
  check("sinks", [](C& c) { c.sinks = true; });
  check("bias", [](C& c) { c.bias = {3, 1, 1, 1536}; });
  check("many queries", [](C& c) { c.queries = 70, c.keys = 300, c.key_lengths = {300, 71, 80}; });
}

// NaN and Inf of values that a query sees are in its result, wherever their page lies.
TEST(AttentionPages, WhatIsNotFiniteIsFelt) {
  AttentionInputs in = make_inputs({.batch = 2,
                                    .heads = 4,
                                    .key_heads = 2,
                                    .queries = 1,
                                    .keys = 200,
                                    .head_size = 64,
                                    .key_lengths = {190, 77}},
                                   DType::bf16);
  in.v.data<bf16>()[(0 * 2 + 1) * 200 * 64 + 150 * 64 + 5] = bf16(INFINITY);
  in.v.data<bf16>()[(1 * 2 + 0) * 200 * 64 + 76 * 64 + 3] = bf16(NAN);
  const AttentionInputs paged = in_pages(in, 64);
  for_each_target([&] {
    const std::vector<double> out = values_of(run_attention(paged, Pass::forward).forward.out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t b = i / 256, head = i / 64 % 4, column = i % 64;
      const bool inf = b == 0 && head >= 2 && column == 5, nan = b == 1 && head < 2 && column == 3;
      EXPECT_EQ(std::isinf(out[i]), inf) << i;
      EXPECT_EQ(std::isnan(out[i]), nan) << i;
    }
  });
}

TEST(AttentionPages, ATapeReachesThePool) {
  const AttentionInputs in = make_inputs({.batch = 2,
                                          .heads = 2,
                                          .key_heads = 1,
                                          .queries = 1,
                                          .keys = 40,
                                          .head_size = 8,
                                          .key_lengths = {40, 13}},
                                         DType::f32);
  AttentionInputs paged = in_pages(in, 8);
  for (Tensor* x : {&paged.k, &paged.v}) {  // a gradient of NaN times 0 is NaN
    for (float& value : std::span(x->data<float>(), static_cast<std::size_t>(x->numel()))) {
      if (std::isnan(value)) value = 0;
    }
  }
  Tape tape;
  const Tensor out = attention(paged.q, paged.k, paged.v, paged.options);
  const Tensor whole = attention(in.q, in.k, in.v, in.options);
  const Gradients grads = tape.backward(add(out, whole), Tensor::full(out.shape(), 1));
  const Tensor dk = grads[in.k], dpool = grads[paged.k];
  const auto* table = paged.options.pages.data<std::int32_t>();
  const TapePause pause;
  expect_same_bits("dk", slice(dpool, 0, table[0], table[0] + 1),
                   slice(slice(dk, 0, 0, 1), 2, 0, 8));
}

TEST(AttentionPages, HostileTablesAreErrors) {
  const Tensor q = Tensor::zeros({2, 2, 1, 8}), pool = Tensor::zeros({4, 2, 16, 8});
  const auto call = [&](const std::vector<std::int32_t>& table,
                        const std::vector<std::int32_t>& l) {
    AttentionOptions options;
    options.mask = Mask::lengths(Tensor::from(l, {2}));
    options.pages = Tensor::from(table, {2, static_cast<std::int64_t>(table.size() / 2)});
    return attention(q, pool, pool, options);
  };
  EXPECT_NO_THROW(call({0, 1, 2, 3}, {32, 17}));
  EXPECT_NO_THROW(call({0, -1, 2, 1 << 30}, {16, 16}));  // what is not used is not looked at
  EXPECT_NO_THROW(call({3, 3, 3, 3}, {32, 32}));         // shared pages: a common beginning
  EXPECT_ERROR("pages[1][1] is 4", call({0, 1, 2, 4}, {32, 17}));
  EXPECT_ERROR("pages[0][0] is -1", call({-1, 1, 2, 3}, {1, 17}));
  EXPECT_ERROR("pages[0][1] is -2147483648", call({0, INT32_MIN, 2, 3}, {17, 17}));
  EXPECT_ERROR("room for 32 keys", call({0, 1, 2, 3}, {33, 17}));
  EXPECT_ERROR("key_lengths[1] is -1", call({0, 1, 2, 3}, {3, -1}));
  EXPECT_ERROR("pages must be i32", call({}, {0, 0}));
  AttentionOptions options;
  options.pages = Tensor::zeros({2, 2}, {DType::i32});
  EXPECT_ERROR("key_lengths", attention(q, pool, pool, options));
  options.mask = Mask::lengths(Tensor::zeros({2}, {DType::i32}));
  EXPECT_NO_THROW(attention(q, pool, pool, options));
  EXPECT_ERROR("v [3", attention(q, pool, Tensor::zeros({3, 2, 16, 8}), options));
  EXPECT_ERROR("k must be pages", attention(q, Tensor::zeros({0, 2, 16, 8}), pool, options));
  EXPECT_ERROR("attention_forward alone", attention_weights(q, pool, options));
  options.pages = Tensor::zeros({3, 2}, {DType::i32});
  EXPECT_ERROR("pages must be i32 [2, N]", attention(q, pool, pool, options));
  options.pages = Tensor::zeros({2, 2}, {DType::i64});
  EXPECT_ERROR("pages must be i32 [2, N]", attention(q, pool, pool, options));
}

// Sequences that begin and end at different times, beside a plain copy of what each was given.
TEST(AttentionPages, SequencesComeGrowAndGo) {
  for (const Device device : devices()) {
    nn::PagedCache cache({.layers = 2,
                          .kv_heads = 2,
                          .head_size = 16,
                          .pages = 12,
                          .page_size = 32,
                          .dtype = DType::bf16,
                          .device = device});
    Generator random(3);
    const auto drawn = [&](std::int64_t batch, std::int64_t count) {
      return to(random.normal({batch, 2, count, 16}, 0, 1, DType::bf16), device);
    };
    std::vector<Tensor> keys(2), values(2);  // of layer 1
    const auto grow = [&](const std::vector<std::int64_t>& who, std::int64_t count) {
      cache.extend(who, count);
      const Tensor k = drawn(static_cast<std::int64_t>(who.size()), count), v = scale(k, -2);
      cache.store(0, who, v, k);
      cache.store(1, who, k, v);
      for (std::size_t i = 0; i < who.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        const auto join = [&](Tensor& all, const Tensor& x) {
          const Tensor mine = slice(x, 0, at, at + 1);
          all = all.defined() ? concat({all, mine}, 2) : contiguous(mine);
        };
        join(keys[who[i]], k);
        join(values[who[i]], v);
      }
    };
    const auto check = [&](const std::vector<std::int64_t>& who) {
      const Tensor q =
          to(random.normal({static_cast<std::int64_t>(who.size()), 4, 1, 16}, 0, 1, DType::bf16),
             device);
      const nn::PagedCache::View view = cache.view(1, who);
      const Tensor out = attention(q, view.keys, view.values, view.options());
      for (std::size_t i = 0; i < who.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        const Tensor alone = attention(slice(q, 0, at, at + 1), keys[who[i]], values[who[i]]);
        EXPECT_LT(relative_distance(slice(out, 0, at, at + 1), alone), 0.02) << to_string(device);
        if (device == kCpu) expect_same_bits("out", contiguous(slice(out, 0, at, at + 1)), alone);
      }
    };
    EXPECT_EQ(cache.add(), 0);
    EXPECT_EQ(cache.add(), 1);
    grow({0}, 70);
    grow({1}, 5);
    for (int i = 0; i < 40; ++i) {
      grow({0, 1}, 1);
      if (i % 13 == 0) check({1, 0});
    }
    EXPECT_EQ(cache.length(0), 110);
    EXPECT_EQ(cache.free_pages(), 12 - 4 - 2);
    cache.remove(0);
    keys[0] = values[0] = {};
    EXPECT_EQ(cache.free_pages(), 10);
    EXPECT_EQ(cache.add(), 0);  // in the pages that were given back
    grow({0}, 33);
    check({0, 1});
    EXPECT_ERROR("8 of 12 are free", cache.extend({0, 1}, 200));
    EXPECT_EQ(cache.free_pages(), 8);
    check({0, 1});
    EXPECT_ERROR("no sequence 2", cache.extend({0, 2}, 1));
    EXPECT_ERROR("twice", cache.extend({0, 0}, 1));
    EXPECT_ERROR("no layer 2", cache.view(2, {0}));
    EXPECT_ERROR("[1, 2, S, 16]", cache.store(0, {0}, drawn(2, 1), drawn(2, 1)));
    EXPECT_ERROR("room for 33", cache.store(0, {0}, drawn(1, 34), drawn(1, 34)));
  }
}

}  // namespace
}  // namespace qkv::test

// What is not visible cannot be felt, and what is visible is felt by exactly those who see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/dispatch.h"
#include "support/attention_check.h"
#include "support/values.h"

namespace qkv::test {
namespace {

class AttentionHidden : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionHidden, ::testing::ValuesIn(kFloats), dtype_name);

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Row `row` of a contiguous tensor whose last axis has `size` elements, if there is one.
void fill_row(const Tensor& x, std::int64_t row, std::int64_t size, float value) {
  if (!x.defined()) return;
  dispatch_float(x.dtype(),
                 [&]<class T>() { std::fill_n(x.data<T>() + row * size, size, T(value)); });
}

bool sees(const ReferenceProblem& p, std::int64_t b, std::int64_t h, std::int64_t i,
          std::int64_t j) {
  return visible(p, b, h, i, j) &&
         bias_of(p, b, h, i, j) != -std::numeric_limits<double>::infinity();
}

// Calls f(b, h, i, j) for every pair within a sequence.
template <class F>
void for_each_pair(const ReferenceProblem& p, F&& f) {
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(p.sequences.size()); ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      for (std::int64_t i = 0; i < p.sequences[at(b)].q_rows; ++i) {
        for (std::int64_t j = 0; j < p.sequences[at(b)].k_rows; ++j) f(b, h, i, j);
      }
    }
  }
}

// Which rows of q see anything, and which rows of k are seen.
struct Seen {
  std::vector<bool> queries, keys;

  explicit Seen(const ReferenceProblem& p)
      : queries(p.q.size() / at(p.head_size)), keys(p.k.size() / at(p.head_size)) {
    for_each_pair(p, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      if (!sees(p, b, h, i, j)) return;
      queries[at(p.q_row(b, h, i))] = true;
      keys[at(p.k_row(b, h, j))] = true;
    });
  }
};

// Poison in everything hidden: keys nobody sees, queries that see nothing, and the bias of hidden
// pairs.
void poison_hidden(const ReferenceProblem& p, const Seen& seen, float value, AttentionInputs& in) {
  for (std::size_t row = 0; row < seen.keys.size(); ++row) {
    if (seen.keys[row]) continue;
    fill_row(in.k, static_cast<std::int64_t>(row), p.head_size, value);
    fill_row(in.v, static_cast<std::int64_t>(row), p.value_size, value);
  }
  for (std::size_t row = 0; row < seen.queries.size(); ++row) {
    if (seen.queries[row]) continue;
    fill_row(in.q, static_cast<std::int64_t>(row), p.head_size, value);
    fill_row(in.dout, static_cast<std::int64_t>(row), p.value_size, value);
    if (!p.packed) {
      for (Tensor* of_row : {&in.dlse, &in.dentropy}) {
        if (of_row->defined()) fill_row(*of_row, static_cast<std::int64_t>(row), 1, value);
      }
    }
  }
  if (p.bias.values.size() != at(p.heads * p.q_rows * p.k_rows) * p.sequences.size()) return;
  for_each_pair(p, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    if (visible(p, b, h, i, j)) return;
    fill_row(in.options.bias.values, static_cast<std::int64_t>(p.bias.index(b, h, i, j)), 1, value);
  });
}

// Exactly 0, not nearly.
void expect_zero_rows(const char* what, const Tensor& x, const std::vector<bool>& seen,
                      std::int64_t size) {
  const std::vector<double> values = values_of(x);
  for (std::size_t row = 0; row < seen.size(); ++row) {
    for (std::size_t d = 0; !seen[row] && d < at(size); ++d) {
      ASSERT_EQ(values[row * at(size) + d], 0) << what << " of hidden row " << row;
    }
  }
}

// How far a gradient may move that feels nothing: not at all, but for 16-bit inputs on a GPU. The
// kernel that multiplies by matrix instructions leaves inputs that are not finite to the general
// one, and the two round differently.
double rounding_apart(const Tensor& gradient, DType dtype) {
  if (test_device() == kCpu || dtype == DType::f32) return 0;
  double largest = 0;
  for (const double value : values_of(gradient)) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest * (dtype == DType::bf16 ? 0x1p-6 : 0x1p-9);
}

void expect_unchanged(const AttentionRun& clean, const AttentionRun& poisoned) {
  const DType dtype = clean.grads.dq.dtype();
  if (rounding_apart(clean.grads.dq, dtype) == 0) return expect_same_bits(clean, poisoned);
  const AttentionRun before{clean.forward, {}}, after{poisoned.forward, {}};
  expect_same_bits(before, after);
  const AttentionGrads &a = clean.grads, &b = poisoned.grads;
  const auto close = [&](const char* what, const Tensor& was, const Tensor& is) {
    if (was.defined()) expect_close(what, is, values_of(was), rounding_apart(was, dtype));
  };
  close("dq", a.dq, b.dq);
  close("dk", a.dk, b.dk);
  close("dv", a.dv, b.dv);
  close("dbias", a.dbias, b.dbias);
}

void check_hidden(const AttentionCase& c, DType dtype) {
  SCOPED_TRACE(c.name + " " + to_string(dtype));
  const AttentionInputs clean = make_inputs(c, dtype);
  const ReferenceProblem p = reference_problem(clean);
  const Seen seen(p);
  const float huge = dtype == DType::f16 ? 65504.0f : 3e38f;
  for_each_target([&] {
    const AttentionRun expected = run_attention(clean);
    expect_zero_rows("out", expected.forward.out, seen.queries, p.value_size);
    expect_zero_rows("dq", expected.grads.dq, seen.queries, p.head_size);
    expect_zero_rows("dk", expected.grads.dk, seen.keys, p.head_size);
    expect_zero_rows("dv", expected.grads.dv, seen.keys, p.value_size);
    // Every kind of poison within a tile; over several, where runs are long, the worst of them.
    const bool several = p.q_rows * p.k_rows > 2000;
    for (const float value : several ? std::vector{kNan} : std::vector{kNan, kInf, -kInf, huge}) {
      SCOPED_TRACE("poison " + std::to_string(value));
      AttentionInputs poisoned = make_inputs(c, dtype);
      poison_hidden(p, seen, value, poisoned);
      expect_unchanged(expected, run_attention(poisoned));
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST_P(AttentionHidden, CannotBeFelt) {
  using C = AttentionCase;
  const auto check = [&](std::string name, auto&& change) {
    for (const std::int64_t scale : {1, 5}) {  // one tile, and several
      C c{.name = name,
          .heads = 4,
          .queries = 30 * scale,
          .keys = 41 * scale,
          .head_size = 16,
          .statistics = Statistics::all,
          .dlse = true,
          .dentropy = true};
      const auto s = static_cast<std::int32_t>(scale);
      change(c, s);
      check_hidden(c, GetParam());
    }
  };
  check("key lengths", [](C& c, int s) { c.key_lengths = {13 * s, 40 * s}; });
  check("key lengths, one query", [](C& c, int s) {
    c.queries = 1, c.keys = 150 * s, c.key_lengths = {0, 77 * s};
  });
  check("allowed keys, one query", [](C& c, int s) {
    c.queries = 1, c.keys = 150 * s, c.allowed = {2, 1, 1, 150 * s};
  });
  check("window, two queries",
        [](C& c, int s) { c.queries = 2, c.keys = 150 * s, c.causal = true, c.left = 20; });
  check("query lengths", [](C& c, int s) { c.query_lengths = {3 * s, 0}; });
  check("causal from the top left", [](C& c, int) { c.causal = true, c.align = Align::top_left; });
  check("negative offset", [](C& c, int s) { c.causal = true, c.offset = -9 * s; });
  check("window", [](C& c, int s) { c.left = c.right = 2, c.offset = 20 * s; });
  check("allowed keys", [](C& c, int s) { c.allowed = {2, 1, 1, 41 * s}; });
  check("allowed rows", [](C& c, int s) { c.allowed = {2, 1, 30 * s, 1}; });
  check("bias that hides keys", [](C& c, int s) {
    c.bias = {1, 1, 1, 41 * s}, c.bias_hides = true;
  });
  check("bias of hidden pairs", [](C& c, int s) {
    c.bias = {2, 4, 30 * s, 41 * s}, c.causal = true, c.key_lengths = {5 * s, 30 * s};
  });
  check("softcap and dropout", [](C& c, int s) {
    c.key_lengths = {13 * s, 20 * s}, c.softcap = 2, c.dropout = 0.2f, c.sinks = true;
  });
  check("lengths and slopes", [](C& c, int s) {
    c.key_lengths = {13 * s, 20 * s}, c.query_lengths = {9 * s, 30 * s}, c.causal = true,
    c.slopes = {4};
  });
}

// The same where a GPU has kernels for short sequences, which tell of rows only.
TEST_P(AttentionHidden, CannotBeFeltInShortSequences) {
  using C = AttentionCase;
  const auto check = [&](std::string name, auto&& change) {
    C c{.name = name,
        .queries = 30,
        .keys = 41,
        .head_size = 32,
        .statistics = kRowStatistics,
        .dlse = true};
    change(c);
    check_hidden(c, GetParam());
  };
  check("lengths", [](C& c) { c.key_lengths = {13, 40}, c.query_lengths = {30, 3}; });
  check("causal", [](C& c) { c.causal = true, c.offset = -9; });
  check("window", [](C& c) { c.left = c.right = 2, c.offset = 20; });
  check("allowed keys", [](C& c) { c.allowed = {2, 1, 1, 41}; });
  check("dropout", [](C& c) {
    c.key_lengths = {13, 20}, c.dropout = 0.2f, c.softcap = 2, c.statistics = Statistics::none;
  });
}

// The same where it has kernels for long ones, which tell of rows only.
TEST_P(AttentionHidden, CannotBeFeltInLongSequences) {
  using C = AttentionCase;
  const auto check = [&](std::string name, auto&& change) {
    C c{.name = name,
        .queries = 150,
        .keys = 205,
        .head_size = 64,
        .statistics = kRowStatistics,
        .dlse = true};
    change(c);
    check_hidden(c, GetParam());
  };
  check("lengths", [](C& c) { c.key_lengths = {65, 200}, c.query_lengths = {150, 15}; });
  check("causal", [](C& c) { c.causal = true, c.offset = -45; });
  check("window", [](C& c) { c.left = c.right = 10, c.offset = 30; });
  check("slopes", [](C& c) {
    c.heads = c.key_heads = 2, c.slopes = {2}, c.key_lengths = {65, 200};
  });
  check("table", [](C& c) {
    c.buckets = 8, c.max_distance = 20, c.key_lengths = {65, 200}, c.query_lengths = {150, 15};
  });
}

// Packed neighbours lie side by side in memory, and still do not touch.
TEST_P(AttentionHidden, CannotBeFeltWhenPacked) {
  AttentionCase c{.name = "packed",
                  .heads = 4,
                  .head_size = 16,
                  .query_offsets = {0, 20, 60, 61, 200},
                  .key_offsets = {0, 30, 60, 90, 240},
                  .causal = true,
                  .key_lengths = {10, 30, 0, 100},
                  .query_lengths = {20, 5, 1, 90},
                  .statistics = Statistics::all};
  check_hidden(c, GetParam());
  c.causal = false;
  c.sinks = true;
  check_hidden(c, GetParam());
}

enum class Where : std::uint8_t { q, k, v, dout };

// Who feels a NaN in one row of `where`: the queries, and through them the keys they see.
struct Felt {
  std::vector<bool> queries, keys;

  Felt(const ReferenceProblem& p, Where where, std::size_t poisoned)
      : queries(p.q.size() / at(p.head_size)), keys(p.k.size() / at(p.head_size)) {
    const bool query = where == Where::q || where == Where::dout;
    for_each_pair(p, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      const std::size_t q = at(p.q_row(b, h, i)), k = at(p.k_row(b, h, j));
      if (sees(p, b, h, i, j) && (query ? q : k) == poisoned) queries[q] = true;
    });
    for_each_pair(p, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      if (sees(p, b, h, i, j) && queries[at(p.q_row(b, h, i))]) keys[at(p.k_row(b, h, j))] = true;
    });
  }
};

// NaN in the rows that feel it, the same value in all others, or one that is this far `apart`.
void expect_felt(const char* what, const Tensor& clean, const Tensor& poisoned,
                 const std::vector<bool>& felt, double apart = 0) {
  const std::vector<double> a = values_of(clean), b = values_of(poisoned);
  const std::size_t size = a.size() / felt.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (felt[i / size] ? std::isnan(b[i]) : a[i] == b[i] || std::abs(a[i] - b[i]) <= apart) {
      continue;
    }
    ADD_FAILURE() << what << " row " << i / size << ": " << a[i] << " became " << b[i] << ", "
                  << (felt[i / size] ? "but the row sees a NaN" : "but the row sees no NaN");
    return;
  }
}

void check_felt(const AttentionCase& c, DType dtype, Where where, std::int64_t row) {
  constexpr const char* kNames[] = {"q", "k", "v", "dout"};
  SCOPED_TRACE(c.name + " " + to_string(dtype) + " in " + kNames[static_cast<std::size_t>(where)]);
  const AttentionInputs clean = make_inputs(c, dtype);
  const ReferenceProblem p = reference_problem(clean);
  AttentionInputs poisoned = make_inputs(c, dtype);
  const Tensor& target = where == Where::q   ? poisoned.q
                         : where == Where::k ? poisoned.k
                         : where == Where::v ? poisoned.v
                                             : poisoned.dout;
  fill_row(target, row, target.size(-1), kNan);
  const Felt felt(p, where, at(row));
  const std::vector<bool> nobody(felt.queries.size()), no_key(felt.keys.size());
  const bool in_score = where == Where::q || where == Where::k;
  const bool in_out = where != Where::dout;
  for_each_target([&] {
    const AttentionRun a = run_attention(clean), b = run_attention(poisoned);
    expect_felt("lse", a.forward.lse, b.forward.lse, in_score ? felt.queries : nobody);
    expect_felt("out", a.forward.out, b.forward.out, in_out ? felt.queries : nobody);
    expect_felt("dq", a.grads.dq, b.grads.dq, felt.queries, rounding_apart(a.grads.dq, dtype));
    expect_felt("dk", a.grads.dk, b.grads.dk, felt.keys, rounding_apart(a.grads.dk, dtype));
    expect_felt("dv", a.grads.dv, b.grads.dv, where == Where::v ? no_key : felt.keys,
                rounding_apart(a.grads.dv, dtype));
    if (in_score && a.forward.statistics.entropy.defined()) {
      expect_felt("entropy", a.forward.statistics.entropy, b.forward.statistics.entropy,
                  felt.queries);
      expect_felt("top_weight", a.forward.statistics.top_weight, b.forward.statistics.top_weight,
                  felt.queries);
    }
  });
}

TEST_P(AttentionHidden, NanReachesExactlyWhoSeesIt) {
  using C = AttentionCase;
  for (const std::int64_t length : {40, 210}) {
    const C base{.name = "none",
                 .heads = 4,
                 .queries = length,
                 .keys = length,
                 .head_size = 16,
                 .statistics = Statistics::all};
    C causal = base, window = base, allowed = base, lengths = base, one = base;
    causal.name = "causal", causal.causal = true;
    window.name = "window", window.left = 3, window.right = 2;
    allowed.name = "allowed", allowed.allowed = {2, 4, length, length};
    lengths.name = "lengths", lengths.key_lengths = {30, 36}, lengths.softcap = 3;
    one.name = "one query", one.queries = 1, one.causal = true;
    for (const C& c : {base, causal, window, allowed, lengths, one}) {
      for (const Where where : {Where::q, Where::k, Where::v, Where::dout}) {
        const bool query = where == Where::q || where == Where::dout;
        check_felt(c, GetParam(), where, query ? c.queries / 2 : c.keys / 2);
        check_felt(c, GetParam(), where, query ? c.queries * 3 - 1 : c.keys * 3 - 1);
        if (::testing::Test::HasFailure()) return;  // the rest would say the same
      }
    }
  }
}

TEST_P(AttentionHidden, NanReachesExactlyWhoSeesItInLongSequences) {
  AttentionCase c{.name = "causal",
                  .queries = 210,
                  .keys = 210,
                  .head_size = 64,
                  .causal = true,
                  .statistics = kRowStatistics};
  AttentionCase capped = c;
  capped.name = "softcap", capped.softcap = 3, capped.statistics = Statistics::none;
  for (const Where where : {Where::q, Where::k, Where::v, Where::dout}) {
    check_felt(c, GetParam(), where, 105);
    check_felt(capped, GetParam(), where, 105);
    if (::testing::Test::HasFailure()) return;
  }
}

// Most weights underflow to 0, and 0 times NaN is still NaN to who sees it.
TEST_P(AttentionHidden, NanReachesThroughWeightsOfZero) {
  for (const std::int64_t queries : {1, 40, 210}) {
    const AttentionCase c{.name = "sharp",
                          .heads = 4,
                          .queries = queries,
                          .keys = 210,
                          .head_size = 16,
                          .scale = 40.0f,
                          .causal = true,
                          .statistics = Statistics::all};
    check_felt(c, GetParam(), Where::v, 105);
    if (::testing::Test::HasFailure()) return;
    AttentionCase decode = c;
    decode.statistics = Statistics::none;
    SCOPED_TRACE("no statistics");
    check_felt(decode, GetParam(), Where::v, 105);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace qkv::test

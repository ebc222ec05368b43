// Adversarial values: enormous scores, one dominant key, all equal, subnormals.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "core/dispatch.h"
#include "qkv/ops.h"
#include "support/attention_check.h"
#include "support/values.h"

namespace qkv::test {
namespace {

class AttentionHostile : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionHostile, ::testing::ValuesIn(kFloats), dtype_name);

// Multiplies every element, in place.
void multiply(const Tensor& x, float factor) {
  dispatch_float(x.dtype(), [&]<class T>() {
    T* data = x.data<T>();
    for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = T(static_cast<float>(data[i]) * factor);
  });
}

// The largest q and k whose product stays a score of about 1e30, or what f16 can hold.
float enormous(DType dtype) { return dtype == DType::f16 ? 1e4f : 3e14f; }

void expect_finite(const char* what, const Tensor& x) {
  for (const double value : values_of(x)) ASSERT_TRUE(std::isfinite(value)) << what;
}

// Scores of +-1e30: each row is the value of its best key; lse is that score; p is one-hot in the
// backward pass as well, which has to find the same score again to the last bit.
TEST_P(AttentionHostile, EnormousScoresAreOneHot) {
  for (const std::int64_t queries : {1, 3, 33, 140}) {
    for (const bool causal : {false, true}) {
      AttentionCase c{.name = "enormous",
                      .heads = 4,
                      .queries = queries,
                      .keys = 150,
                      .head_size = 24,
                      .scale = 1.0f,
                      .causal = causal,
                      .deviation = enormous(GetParam())};
      check_attention(c, GetParam(), Pass::forward);
      SCOPED_TRACE("Sq " + std::to_string(queries) + (causal ? " causal " : " ") +
                   to_string(GetParam()));
      const AttentionInputs in = make_inputs(c, GetParam());
      const ReferenceProblem p = reference_problem(in);
      const ReferenceResult exact = reference_exact(p), plain = reference_plain(p);
      for_each_target([&] {
        const AttentionRun run = run_attention(in);
        expect_close("dv", run.grads.dv, exact.dv, limit_of(exact.dv, plain.dv));
        expect_finite("dq", run.grads.dq);
        expect_finite("dk", run.grads.dk);
        // p (dp - r) is 0 but for the rounding of two sums of about sqrt(D), which then meets k.
        double largest = 0;
        for (const double x : values_of(run.grads.dq)) largest = std::max(largest, std::abs(x));
        const double unit = GetParam() == DType::bf16  ? 4e-3
                            : GetParam() == DType::f16 ? 5e-4
                                                       : 6e-8;
        EXPECT_LE(largest, 64 * unit * 24 * 5 * enormous(GetParam()));
      });
    }
  }
}

// All scores enormous and negative, so that lse is -1e30.
TEST_P(AttentionHostile, EnormousNegativeScores) {
  AttentionInputs in =
      make_inputs({.queries = 20, .keys = 70, .head_size = 8, .scale = 1.0f}, GetParam());
  for (const Tensor& x : {in.q, in.k}) {
    dispatch_float(x.dtype(), [&]<class T>() {
      T* data = x.data<T>();
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        data[i] = T((1 + std::abs(static_cast<float>(data[i]))) * enormous(GetParam()));
      }
    });
  }
  multiply(in.q, -1);
  SCOPED_TRACE(to_string(GetParam()));
  check_attention(in, Pass::forward);
}

TEST_P(AttentionHostile, EnormousScoresUnderASoftcap) {
  check_attention({.name = "softcap",
                   .queries = 20,
                   .keys = 70,
                   .scale = 1.0f,
                   .softcap = 20,
                   .deviation = enormous(GetParam())},
                  GetParam(), Pass::forward);
}

TEST_P(AttentionHostile, OneDominantKey) {
  for (const std::int64_t key : {0, 63, 64, 149}) {
    AttentionInputs in = make_inputs(
        {.queries = 70, .keys = 150, .head_size = 32, .statistics = Statistics::all, .dlse = true},
        GetParam());
    const Tensor row = slice(in.k, 2, key, key + 1);  // [B, H, 1, D], a view
    dispatch_float(row.dtype(), [&]<class T>() {
      for (std::int64_t head = 0; head < 4; ++head) {
        T* data = row.data<T>() + head * 150 * 32;
        for (std::int64_t d = 0; d < 32; ++d) data[d] = T(static_cast<float>(data[d]) * 30);
      }
    });
    SCOPED_TRACE("key " + std::to_string(key) + " " + to_string(GetParam()));
    check_attention(in);
  }
}

// Over more tiles than one the largest score of a row rises a little or a lot, is negative first,
// last or always, or comes after a NaN: every way in which a maximum moves, or need not.
TEST_P(AttentionHostile, MaximaThatMove) {
  constexpr std::int64_t kKeys = 600;
  using Score = float (*)(std::int64_t key);
  constexpr std::pair<const char*, Score> kScores[] = {
      {"rising", [](std::int64_t j) { return 0.1f * static_cast<float>(j - kKeys / 2); }},
      {"falling", [](std::int64_t j) { return 0.1f * static_cast<float>(kKeys / 2 - j); }},
      {"a little", [](std::int64_t j) { return 0.005f * static_cast<float>(j); }},
      {"negative", [](std::int64_t j) { return -25 - 0.01f * static_cast<float>(j); }},
      {"negative but for one", [](std::int64_t j) { return j == 5 ? 6.0f : -9.0f; }},
      {"one far above", [](std::int64_t j) { return j == 300 ? 60.0f : 0.0f; }},
      {"far below at the end", [](std::int64_t j) { return j < 400 ? 0.0f : -90.0f; }},
      {"NaN", [](std::int64_t j) { return j == 37 ? std::nanf("") : 1.0f; }},
  };
  constexpr Statistics kSets[] = {
      Statistics::none,
      Statistics::max_logit | Statistics::score_moments | Statistics::entropy |
          Statistics::saturation,
      Statistics::max_logit | Statistics::top_weight,
  };
  for (const auto& [name, score] : kScores) {
    for (const std::int64_t size : {64, 128}) {
      for (const Statistics wanted : kSets) {
        const AttentionInputs in = make_inputs({.batch = 1,
                                                .queries = 70,
                                                .keys = kKeys,
                                                .head_size = size,
                                                .causal = size == 128,
                                                .statistics = wanted},
                                               GetParam());
        // The first element adds `score` to every score of a key.
        dispatch_float(GetParam(), [&]<class T>() {
          for (std::int64_t row = 0; row < in.q.numel() / size; ++row) {
            in.q.data<T>()[row * size] = T(std::sqrt(static_cast<float>(size)));
          }
          for (std::int64_t row = 0; row < in.k.numel() / size; ++row) {
            in.k.data<T>()[row * size] = T(score(row % kKeys));
          }
        });
        SCOPED_TRACE(fmt::format("{}, head size {}, statistics {}, {}", name, size,
                                 static_cast<int>(wanted), to_string(GetParam())));
        check_attention(in, Pass::forward);
      }
    }
  }
}

// A visible NaN is the largest logit of its head, however scores are computed; a hidden one is not.
TEST_P(AttentionHostile, NaNAmongLogits) {
  const Statistics wanted = Statistics::max_logit | Statistics::entropy;
  const AttentionCase cases[] = {
      {.name = "plain", .queries = 40, .keys = 150},
      {.name = "softcap", .queries = 40, .keys = 150, .softcap = 5},
      {.name = "bias", .queries = 40, .keys = 150, .bias = {1, 2, 40, 150}},
      {.name = "decode", .queries = 1, .keys = 2100, .head_size = 64},
      {.name = "decode, slopes", .queries = 1, .keys = 2100, .head_size = 64, .slopes = {2}},
  };
  for (AttentionCase c : cases) {
    for (const bool is_seen : {false, true}) {
      c.statistics = wanted;
      c.key_lengths = is_seen ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{37, 30};
      const AttentionInputs in = make_inputs(c, GetParam());
      dispatch_float(GetParam(), [&]<class T>() {
        in.k.data<T>()[37 * c.head_size] = T(std::nanf(""));  // of the first sequence and head
      });
      SCOPED_TRACE(fmt::format("{}, {}, {}", c.name, is_seen, to_string(GetParam())));
      check_attention(in, Pass::forward);
    }
  }
}

TEST_P(AttentionHostile, AllEqual) {
  for (const std::int64_t keys : {1, 2, 64, 150, 1000}) {
    check_attention({.name = "equal",
                     .batch = 1,
                     .queries = 20,
                     .keys = keys,
                     .statistics = Statistics::all,
                     .dlse = true,
                     .dentropy = true,
                     .deviation = 0},
                    GetParam());
  }
}

TEST_P(AttentionHostile, Subnormals) {
  const float tiny = GetParam() == DType::f16 ? 1e-7f : 1e-40f;
  const AttentionCase c{.queries = 20, .keys = 70, .statistics = Statistics::all};
  for (int which = 0; which < 4; ++which) {
    AttentionInputs in = make_inputs(c, GetParam());
    multiply(which == 0 ? in.q : which == 1 ? in.k : which == 2 ? in.v : in.dout, tiny);
    SCOPED_TRACE("tensor " + std::to_string(which) + " " + to_string(GetParam()));
    check_attention(in);
  }
  // Small enough that every weight but one underflows.
  check_attention({.name = "underflow",
                   .queries = 20,
                   .keys = 70,
                   .scale = 30.0f,
                   .statistics = Statistics::all,
                   .dlse = true},
                  GetParam());
}

// A row of 100 scores near -1e4 and its neighbour near +1e4, in one tile.
TEST_P(AttentionHostile, RowsOfVeryDifferentSize) {
  check_attention({.name = "rows",
                   .queries = 40,
                   .keys = 100,
                   .bias = {1, 1, 40, 1},
                   .bias_dtype = DType::f32,
                   .bias_shift = -1e4f,
                   .statistics = Statistics::all,
                   .dlse = true},
                  GetParam());
}

// Later keys ever larger: the running maximum changes with every tile.
TEST_P(AttentionHostile, GrowingScores) {
  AttentionInputs in = make_inputs({.batch = 1,
                                    .queries = 70,
                                    .keys = 600,
                                    .head_size = 16,
                                    .statistics = Statistics::all,
                                    .dlse = true},
                                   GetParam());
  Tensor bias = Tensor::empty({600});
  for (const float slope : {0.2f, -0.2f, 3.0f, -3.0f}) {
    for (std::int64_t j = 0; j < 600; ++j) bias.data<float>()[j] = slope * static_cast<float>(j);
    in.options.bias = Bias::fixed(bias);
    SCOPED_TRACE("slope " + std::to_string(slope) + " " + to_string(GetParam()));
    check_attention(in);
  }
}

}  // namespace
}  // namespace qkv::test

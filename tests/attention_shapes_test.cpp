// Heads, strides and scales.
#include <gtest/gtest.h>

#include "support/attention_check.h"

namespace qkv::test {
namespace {

class AttentionShapes : public AttentionByDType {};
INSTANTIATE_TEST_SUITE_P(All, AttentionShapes, ::testing::ValuesIn(kFloats), dtype_name);

TEST_P(AttentionShapes, HeadsShareKeys) {
  struct Heads {
    std::int64_t query, key;
  };
  for (const Heads heads : {Heads{1, 1}, {3, 3}, {4, 2}, {6, 2}, {8, 1}, {12, 4}, {5, 1}}) {
    for (const std::int64_t queries : {1, 5, 33}) {
      check_attention({.name = "heads",
                       .heads = heads.query,
                       .key_heads = heads.key,
                       .queries = queries,
                       .keys = 37,
                       .head_size = 20,
                       .causal = true,
                       .sinks = true},
                      GetParam());
    }
  }
}

TEST_P(AttentionShapes, AnyStrides) {
  for (const Layout layout :
       {Layout::row_major, Layout::heads_inside, Layout::scattered, Layout::expanded}) {
    for (const std::int64_t size : {1, 5, 16, 48, 64, 100}) {
      for (const bool causal : {false, true}) {
        check_attention({.name = "layout " + std::to_string(static_cast<int>(layout)),
                         .batch = 3,
                         .heads = 4,
                         .queries = 21,
                         .keys = 35,
                         .head_size = size,
                         .value_size = size + 3,
                         .layout = layout,
                         .causal = causal},
                        GetParam());
      }
    }
  }
}

// One row or key wide enough to decode, in every layout.
TEST_P(AttentionShapes, AnyStridesForOneQuery) {
  for (const Layout layout : {Layout::heads_inside, Layout::scattered, Layout::expanded}) {
    check_attention({.name = "one query",
                     .heads = 6,
                     .queries = 1,
                     .keys = 150,
                     .head_size = 64,
                     .layout = layout},
                    GetParam());
  }
}

// q, k and v each in a layout of its own.
TEST_P(AttentionShapes, MixedStrides) {
  AttentionInputs in =
      make_inputs({.heads = 4, .queries = 30, .keys = 41, .head_size = 24}, GetParam());
  in.k = laid_out(in.k, Layout::heads_inside);
  in.v = laid_out(in.v, Layout::scattered);
  check_attention(in);
  in.q = laid_out(in.q, Layout::scattered);
  in.k = laid_out(in.k, Layout::row_major);
  in.dout = laid_out(in.dout, Layout::heads_inside);
  check_attention(in);
}

TEST_P(AttentionShapes, AnyScale) {
  for (const float scale : {0.0f, -0.25f, 1.0f, 1.0f / 16, 1e-6f, 2e-38f, 3.0f, 40.0f}) {
    for (const bool causal : {false, true}) {
      // Which are two kernels on a GPU.
      for (const Statistics statistics : {Statistics::all, kRowStatistics}) {
        check_attention({.name = "scale " + std::to_string(scale),
                         .queries = 29,
                         .keys = 40,
                         .head_size = 16,
                         .scale = scale,
                         .causal = causal,
                         .statistics = statistics,
                         .dlse = true},
                        GetParam());
      }
    }
  }
}

TEST_P(AttentionShapes, Softcap) {
  for (const float softcap : {0.5f, 2.0f, 30.0f, 1e4f}) {
    for (const float deviation : {1.0f, 4.0f}) {
      check_attention({.name = "softcap " + std::to_string(softcap),
                       .queries = 29,
                       .keys = 40,
                       .head_size = 16,
                       .softcap = softcap,
                       .sinks = true,
                       .statistics = Statistics::all,
                       .dlse = true,
                       .dentropy = true,
                       .deviation = deviation},
                      GetParam());
    }
  }
}

TEST_P(AttentionShapes, Sinks) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t keys : {1, 40, 200}) {
      check_attention({.name = "sinks",
                       .heads = 4,
                       .queries = 29,
                       .keys = keys,
                       .head_size = 16,
                       .causal = causal,
                       .sinks = true,
                       .statistics = Statistics::all,
                       .dlse = true,
                       .dentropy = true},
                      GetParam());
    }
  }
  // A sink far above and far below every score.
  for (const float sink : {-1e4f, 80.0f, 3e4f}) {
    AttentionInputs in = make_inputs(
        {.queries = 9, .keys = 31, .sinks = true, .statistics = Statistics::all, .dlse = true},
        GetParam());
    in.options.sinks = Tensor::full({2}, sink);
    SCOPED_TRACE("sink " + std::to_string(sink) + " " + to_string(GetParam()));
    check_attention(in);
  }
}

TEST_P(AttentionShapes, Dropout) {
  for (const float rate : {0.1f, 0.5f, 0.9f, 0.999f}) {
    for (const std::int64_t queries : {1, 3, 70}) {
      check_attention({.name = "dropout " + std::to_string(rate),
                       .heads = 4,
                       .queries = queries,
                       .keys = 133,
                       .head_size = 16,
                       .causal = true,
                       .dropout = rate,
                       .sinks = true,
                       .statistics = Statistics::all,
                       .dlse = true,
                       .dentropy = true},
                      GetParam());
    }
  }
}

// The share that is kept, and that another seed, and a pair elsewhere, are independent of it: those
// that share a draw among them.
TEST(AttentionDropout, KeepsTheRightShare) {
  struct Other {
    std::uint64_t seed;
    std::int64_t b, h, i, j;
  };
  const Other others[] = {{2, 0, 0, 0, 0},  {1, 1, 0, 0, 0},  {1, 0, 1, 0, 0},  {1, 0, 0, 1, 0},
                          {1, 0, 0, 8, 0},  {1, 0, 0, 16, 0}, {1, 0, 0, 0, 1},  {1, 0, 0, 0, 8},
                          {1, 0, 0, 0, 16}, {1, 0, 0, 8, 8},  {1, 0, 0, 8, 24}, {1, 0, 0, 0, 32}};
  ReferenceProblem p;
  p.dropout = 0.25;
  for (const Other& other : others) {
    int kept = 0, same = 0;
    for (std::int64_t i = 0; i < 100; ++i) {
      for (std::int64_t j = 0; j < 100; ++j) {
        p.seed = 1;
        const bool first = kept_by_dropout(p, 0, 0, i, j);
        p.seed = other.seed;
        kept += first ? 1 : 0;
        same += first == kept_by_dropout(p, other.b, other.h, i + other.i, j + other.j) ? 1 : 0;
      }
    }
    EXPECT_NEAR(kept, 7500, 4 * 43.3);
    EXPECT_NEAR(same, 6250, 4 * 48.4) << other.i << ", " << other.j;
  }
}

TEST(AttentionDefault, ScaleIsOneOverRootD) {
  const AttentionInputs in = make_inputs({.head_size = 64}, DType::f32);
  AttentionOptions given;
  given.scale = 0.125f;
  for_each_target([&] {
    expect_same_bits("out", attention(in.q, in.k, in.v), attention(in.q, in.k, in.v, given));
  });
}

}  // namespace
}  // namespace qkv::test

// What keys receive, over the tiles of a GPU's kernels: blocks of 256 keys and tiles of 128 or 64
// rows on a Hopper GPU, of 64 keys elsewhere. The CPU computes the same cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "qkv/ops.h"
#include "support/attention_check.h"
#include "support/devices.h"
#include "support/values.h"

namespace qkv::test {
namespace {

using Case = AttentionCase;

class AttentionReceived : public AttentionOfGpuTiles {
 protected:
  // In kernels for heads of 64, 128 and 256, of which some are padded.
  template <class Change>
  void check(const std::string& name, Change change) {
    for (const std::int64_t size : {64, 104, 256}) check(name, size, change);
  }
  template <class Change>
  void check(const std::string& name, std::int64_t size, Change change) {
    Case c{.name = name,
           .batch = 1,
           .queries = 300,
           .keys = 410,
           .head_size = size,
           .statistics = Statistics::received};
    change(c);
    check_attention(c, GetParam(), Pass::forward);
  }
};
INSTANTIATE_TEST_SUITE_P(All, AttentionReceived, ::testing::ValuesIn(kFloats), dtype_name);

TEST_P(AttentionReceived, AroundTilesOfKeys) {
  for (const std::int64_t keys : {1, 63, 64, 65, 127, 128, 129, 193, 255, 256, 257, 513}) {
    for (const std::int64_t size : {64, 128, 184}) {
      check("full", size, [&](Case& c) { c.queries = 130, c.keys = keys; });
      check("causal", size, [&](Case& c) { c.queries = 130, c.keys = keys, c.causal = true; });
    }
  }
}

TEST_P(AttentionReceived, AroundTilesOfRows) {
  for (const std::int64_t queries : {65, 127, 128, 129, 191, 192, 193, 256, 257, 643}) {
    for (const std::int64_t size : {40, 128, 256}) {
      check("full", size, [&](Case& c) { c.queries = queries; });
      check("causal", size, [&](Case& c) { c.queries = queries, c.causal = true; });
    }
  }
}

TEST_P(AttentionReceived, OfRowsThatSeeSome) {
  check("top left", [](Case& c) { c.causal = true, c.align = Align::top_left; });
  check("far ahead", [](Case& c) { c.causal = true, c.offset = 250; });
  check("far behind", [](Case& c) { c.causal = true, c.offset = -170; });
  check("nobody", [](Case& c) { c.causal = true, c.offset = -300; });
  check("window", [](Case& c) { c.left = 31, c.right = 9; });
  check("window ahead", [](Case& c) { c.left = 0, c.right = 140, c.offset = 60; });
  check("causal window", [](Case& c) { c.left = 70, c.causal = true; });
  check("lengths", [](Case& c) {
    c.batch = 4, c.key_lengths = {410, 0, 129, 256}, c.query_lengths = {7, 300, 200, 128};
  });
  check("lengths, causal", [](Case& c) {
    c.batch = 3, c.key_lengths = {64, 257, 400}, c.query_lengths = {300, 0, 190}, c.causal = true;
  });
  check("offsets", [](Case& c) {
    c.batch = 3, c.causal = true, c.offset_per_sequence = {-40, 0, 300};
  });
}

TEST_P(AttentionReceived, OfHeadsThatShareKeys) {
  check("groups", [](Case& c) { c.batch = 2, c.heads = 6, c.causal = true; });
  check("one key head", [](Case& c) { c.heads = 5, c.key_heads = 1, c.left = 100; });
  check("heads inside", [](Case& c) { c.batch = 2, c.heads = 4, c.layout = Layout::heads_inside; });
  check("expanded", [](Case& c) { c.batch = 2, c.layout = Layout::expanded, c.causal = true; });
}

TEST_P(AttentionReceived, Packed) {
  check("itself", [](Case& c) {
    c.heads = 4, c.query_offsets = {0, 1, 130, 131, 131, 600}, c.causal = true;
  });
  check("other keys", [](Case& c) {
    c.query_offsets = {0, 140, 141, 300, 420}, c.key_offsets = {0, 290, 290, 547, 590};
  });
  check("other keys, window", [](Case& c) {
    c.query_offsets = {0, 140, 141, 300, 420}, c.key_offsets = {0, 290, 290, 547, 590};
    c.left = 90, c.right = 20;
  });
  check("lengths", [](Case& c) {
    c.heads = 4, c.query_offsets = {0, 20, 160, 161, 400}, c.key_offsets = {0, 30, 160, 390, 800};
    c.causal = true, c.key_lengths = {10, 130, 0, 300}, c.query_lengths = {20, 105, 1, 190};
  });
}

// Beside all else that scores tell, whatever joins their sums, and however far from 0 they are.
TEST_P(AttentionReceived, WithTheRest) {
  check("all", [](Case& c) { c.statistics = Statistics::all; });
  check("all, causal, sinks",
        [](Case& c) { c.statistics = Statistics::all, c.causal = true, c.sinks = true; });
  check("sinks", [](Case& c) { c.sinks = true, c.left = 70, c.batch = 2, c.heads = 4; });
  check("sharp", [](Case& c) { c.scale = 3.0f, c.causal = true; });
  check("large", [](Case& c) { c.deviation = 8, c.scale = 0.5f; });
  check("equal", [](Case& c) { c.deviation = 0; });
}

// NaN reaches the keys of the rows that see it, and no others; hidden, it reaches nobody.
TEST_P(AttentionReceived, NanReachesWhoIsSeenBesideIt) {
  const auto with_nan = [&](const Tensor& x, std::initializer_list<std::int64_t> rows) {
    std::vector<float> values = to(x, DType::f32).to_vector<float>();
    for (const std::int64_t row : rows) {
      std::fill_n(values.begin() + row * x.size(-1), x.size(-1), kNan);
    }
    return to(Tensor::from(values, x.shape()), GetParam());
  };
  for (const std::int64_t size : {64, 128, 256}) {
    const Case window{.name = "window",
                      .batch = 1,
                      .heads = 2,
                      .key_heads = 1,
                      .queries = 300,
                      .keys = 300,
                      .head_size = size,
                      .left = 50,
                      .right = 3,
                      .statistics = Statistics::received};
    const auto check_poisoned = [&](const Case& c, std::initializer_list<std::int64_t> queries,
                                    std::initializer_list<std::int64_t> keys, bool is_felt) {
      SCOPED_TRACE(c.name + " " + std::to_string(size));
      AttentionInputs in = make_inputs(c, GetParam());
      const AttentionInputs clean = in;
      in.q = with_nan(in.q, queries);
      in.k = with_nan(in.k, keys);
      const ReferenceProblem p = reference_problem(in);
      for_each_target([&] {
        const std::vector<double> before =
            values_of(run_attention(clean, Pass::forward).forward.statistics.received);
        const std::vector<double> after =
            values_of(run_attention(in, Pass::forward).forward.statistics.received);
        ASSERT_EQ(after.size(), static_cast<std::size_t>(c.heads * c.keys));
        // Which keys some row sees together with a NaN.
        for (std::int64_t h = 0; h < c.heads; ++h) {
          for (std::int64_t j = 0; j < c.keys; ++j) {
            const auto at = static_cast<std::size_t>(h * c.keys + j);
            bool felt = false;
            for (std::int64_t i = 0; is_felt && i < c.queries; ++i) {
              bool row = false;
              for (const std::int64_t q : queries) row |= q == h * c.queries + i;
              for (const std::int64_t k : keys) row |= visible(p, 0, h, i, k);
              felt |= row && visible(p, 0, h, i, j);
            }
            // The CPU sums what stands beside a NaN in another order.
            const bool same = std::abs(after[at] - before[at]) <= 1e-5 * (1 + before[at]);
            ASSERT_TRUE(felt ? std::isnan(after[at]) : same)
                << "head " << h << ", key " << j << ": " << before[at] << " became " << after[at];
          }
        }
      });
    };
    check_poisoned(window, {}, {200}, true);
    check_poisoned(window, {70, 300 + 257}, {}, true);
    Case lengths = window;
    lengths.name = "lengths", lengths.left = lengths.right = -1;
    lengths.key_lengths = {259}, lengths.query_lengths = {130};
    check_poisoned(lengths, {130, 140, 300 + 299}, {259, 263, 299}, false);
    check_poisoned(lengths, {129}, {}, true);
  }
}

// The same bits again and again, whoever takes which block.
TEST_P(AttentionReceived, HasOneOrder) {
  const AttentionInputs in = make_inputs({.batch = 2,
                                          .heads = 6,
                                          .queries = 700,
                                          .keys = 900,
                                          .head_size = 64,
                                          .causal = true,
                                          .statistics = Statistics::received},
                                         GetParam());
  for_each_target([&] {
    const AttentionRun first = run_attention(in, Pass::forward);
    for (int i = 0; i < 3; ++i) expect_same_bits(first, run_attention(in, Pass::forward));
  });
}

TEST_P(AttentionReceived, IsAHopperGpusOwn) {
  if (!tests_run_on(DeviceType::cuda)) GTEST_SKIP() << "there is no CUDA device";
  const auto kernel = [&](Statistics wanted) {
    const AttentionInputs in =
        make_inputs({.queries = 150, .keys = 205, .head_size = 64}, GetParam());
    AttentionOptions options = in.options;
    options.statistics = wanted;
    return attention_kernels(on_device(in.q, kGpu), on_device(in.k, kGpu), on_device(in.v, kGpu),
                             options)
        .forward;
  };
  EXPECT_EQ(kernel(Statistics::all), kernel(Statistics::none));
  EXPECT_EQ(kernel(Statistics::received), kernel(Statistics::none));
}

}  // namespace
}  // namespace qkv::test

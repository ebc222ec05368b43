// Layers: naming, packing, positions, the cache.
#include "qkv/nn.h"

#include <gtest/gtest.h>

#include <cmath>

#include "qkv/autograd.h"
#include "qkv/error.h"
#include "qkv/random.h"
#include "support/values.h"

namespace qkv {
namespace {

using test::bytes_of;

struct Pair final : nn::Module {
  nn::Linear first{nn::LinearConfig{4, 3}};
  std::vector<nn::LayerNorm> norms{nn::LayerNorm(3, 1e-5), nn::LayerNorm(3, 1e-5)};

  void visit(const nn::Visitor& visitor) override {
    visitor("first", first);
    visitor("norms", norms);
  }
};

TEST(Module, NamesItsParameters) {
  Pair pair;
  EXPECT_TRUE(nn::parameters(pair).empty());
  nn::initialize(pair, 1);
  std::vector<std::string> names;
  for (const nn::Parameter& p : nn::parameters(pair)) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"first.weight", "first.bias", "norms.0.weight",
                                             "norms.0.bias", "norms.1.weight", "norms.1.bias"}));
  EXPECT_EQ(nn::count_parameters(pair), 4 * 3 + 3 + 4 * 3);
  EXPECT_EQ(pair.norms[1].weight.to_vector<float>(), std::vector<float>(3, 1.0f));
  pair.norms[1].weight = pair.norms[0].weight;  // shared: counted once
  EXPECT_EQ(nn::count_parameters(pair), 4 * 3 + 3 + 3 * 3);
}

TEST(Linear, WithoutAWeightSaysSo) {
  const nn::Linear linear({4, 3});
  EXPECT_THROW(linear(Tensor::zeros({2, 4})), Error);
}

TEST(Linear, PackFollowsTraining) {
  Pair pair;
  nn::initialize(pair, 1, {.deviation = 1});
  const Tensor x = Generator(2).normal({5, 4});
  const Tensor before = pair.first(x);
  {
    Tape tape;
    pair.first(x);
  }
  pair.first.weight.data<float>()[0] += 1;  // as an optimiser writes: in place, after a step
  const Tensor after = pair.first(x);
  EXPECT_NE(bytes_of(before), bytes_of(after));
  const Tensor expected = linear(x, pair.first.weight, pair.first.bias);
  for (std::int64_t i = 0; i < after.numel(); ++i) {
    EXPECT_NEAR(after.data<float>()[i], expected.data<float>()[i], 1e-6);
  }
}

// Angles of transformers 5.22 for head size 16, base 10000 and a trained length of 512 (2048 for
// dynamic, asked for 4096 positions).
struct ScalingCase {
  const char* name;
  nn::RotaryConfig config;
  std::vector<double> frequencies;
  double magnitude;
};
std::vector<ScalingCase> scaling_cases() {
  nn::RotaryConfig linear{.head_size = 16, .scaling = "linear", .factor = 4};
  nn::RotaryConfig dynamic{.head_size = 16, .scaling = "dynamic", .factor = 2};
  dynamic.original_positions = 2048;
  nn::RotaryConfig llama3{.head_size = 16, .scaling = "llama3", .factor = 8};
  llama3.original_positions = 512;
  nn::RotaryConfig yarn{.head_size = 16, .scaling = "yarn", .factor = 4};
  yarn.original_positions = 512;
  return {{"linear",
           linear,
           {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
            0.000250000012, 7.90569466e-05},
           1},
          {"dynamic",
           dynamic,
           {1.0, 0.270296127, 0.0730599985, 0.0197478328, 0.00533776265, 0.00144277664,
            0.000389976922, 0.000105409257},
           1},
          {"llama3",
           llama3,
           {1.0, 0.316227764, 0.100000001, 0.0184966773, 0.00124999997, 0.000395284733,
            0.000125000006, 3.95284733e-05},
           1},
          {"yarn",
           yarn,
           {1.0, 0.25693506, 0.0625, 0.0138349654, 0.00249999994, 0.000790569466, 0.000250000012,
            7.90569466e-05},
           1.138629436111989}};
}

TEST(Rotary, ScalingVariantsTurnAsTransformersDoes) {
  for (const ScalingCase& c : scaling_cases()) {
    SCOPED_TRACE(c.name);
    const nn::RotaryTables tables =
        nn::Rotary(c.config)(Tensor::from(std::vector<std::int64_t>{1, 4095}, {2}));
    for (std::size_t i = 0; i < c.frequencies.size(); ++i) {
      EXPECT_NEAR(tables.cos.data<float>()[i], std::cos(c.frequencies[i]) * c.magnitude, 2e-7);
      EXPECT_NEAR(tables.sin.data<float>()[i], std::sin(c.frequencies[i]) * c.magnitude, 2e-7);
    }
  }
}

TEST(Rotary, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(nn::Rotary({.head_size = 16, .scaling = "mystery"}), Error);
  EXPECT_THROW(nn::Rotary({.head_size = 15}), Error);
}

TEST(Positions, SinusoidsOfBothLayouts) {
  const Tensor halves = nn::sinusoidal_positions(7, 6);
  const Tensor pairs = nn::sinusoidal_positions(7, 6, true);
  for (std::int64_t p = 0; p < 7; ++p) {
    for (std::int64_t i = 0; i < 3; ++i) {
      const double angle = static_cast<double>(p) / std::pow(10000, 2 * static_cast<double>(i) / 6);
      EXPECT_NEAR(halves.data<float>()[p * 6 + i], std::sin(angle), 1e-7);
      EXPECT_NEAR(halves.data<float>()[p * 6 + 3 + i], std::cos(angle), 1e-7);
      EXPECT_EQ(pairs.data<float>()[p * 6 + 2 * i], halves.data<float>()[p * 6 + i]);
      EXPECT_EQ(pairs.data<float>()[p * 6 + 2 * i + 1], halves.data<float>()[p * 6 + 3 + i]);
    }
  }
}

TEST(Positions, AlibiSlopes) {
  EXPECT_EQ(nn::alibi_slopes(4).to_vector<float>(),
            (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
  // Beyond a power of two: every other slope of the next one.
  const std::vector<float> six = nn::alibi_slopes(6).to_vector<float>();
  ASSERT_EQ(six.size(), 6u);
  EXPECT_EQ(six[4], 0.5f);
  EXPECT_EQ(six[5], 0.125f);
}

Tensor step_of(std::int64_t value) {
  return Tensor::full({1, 2, 1, 3}, static_cast<double>(value));
}

TEST(KvCache, GrowsWithoutMovingThePast) {
  nn::KvCache cache(10);
  const nn::KvCache::View first = cache.append(0, step_of(1), step_of(-1));
  const void* keys = first.keys.raw();
  for (std::int64_t i = 2; i <= 10; ++i) {
    const nn::KvCache::View view = cache.append(0, step_of(i), step_of(-i));
    EXPECT_EQ(view.keys.raw(), keys);
    EXPECT_EQ(view.keys.size(2), i);
    const std::vector<float> all = view.values.to_vector<float>();
    EXPECT_EQ(all[0], -1);
    EXPECT_EQ(all[static_cast<std::size_t>(i - 1) * 3], static_cast<float>(-i));
  }
  EXPECT_EQ(cache.length(), 10);
  EXPECT_THROW(cache.append(0, step_of(11), step_of(11)), Error);
}

TEST(KvCache, AWindowForgetsWhatItCannotSee) {
  nn::KvCache cache(5000);
  std::size_t most = 0;
  for (std::int64_t i = 1; i <= 2000; ++i) {
    const nn::KvCache::View view = cache.append(0, step_of(i), step_of(i), 8);
    const std::vector<float> keys = view.keys.to_vector<float>();
    const std::int64_t stored = view.keys.size(2);
    ASSERT_GE(stored, std::min<std::int64_t>(i, 8));
    // The newest is last, and the window before it is whole.
    for (std::int64_t back = 0; back < std::min<std::int64_t>(i, 8); ++back) {
      ASSERT_EQ(keys[static_cast<std::size_t>(stored - 1 - back) * 3],
                static_cast<float>(i - back));
    }
    most = std::max(most, cache.bytes());
  }
  EXPECT_EQ(cache.length(), 2000);
  EXPECT_LE(most, 2u * 2 * 3 * 4 * 600);  // some hundreds of positions, not 2000
}

TEST(KvCache, ReordersRows) {
  nn::KvCache cache(4);
  Tensor two = Tensor::zeros({2, 1, 1, 2});
  two.data<float>()[2] = 5;
  cache.append(0, two, two);
  cache.reorder({1, 1, 0});
  const nn::KvCache::View view =
      cache.append(0, Tensor::zeros({3, 1, 1, 2}), Tensor::zeros({3, 1, 1, 2}));
  const std::vector<float> keys = view.keys.to_vector<float>();
  EXPECT_EQ(keys[0], 5);
  EXPECT_EQ(keys[4], 5);
  EXPECT_EQ(keys[8], 0);
}

TEST(KvCache, RefusesAnotherModel) {
  nn::KvCache cache(4);
  cache.append(0, step_of(1), step_of(1));
  EXPECT_THROW(cache.append(0, Tensor::zeros({1, 3, 1, 3}), Tensor::zeros({1, 3, 1, 3})), Error);
}

}  // namespace
}  // namespace qkv

// Means, maxima and norms of heads, in every layout that gradients come in.
#include "ops/head_figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "expect_error.h"
#include "qkv/ops.h"
#include "qkv/random.h"
#include "support/attention_check.h"
#include "support/values.h"

namespace qkv::test {
namespace {

constexpr HeadFigure kFigures[] = {HeadFigure::mean, HeadFigure::largest, HeadFigure::norm};

std::vector<double> expected(const HeadFigures& item) {
  const std::vector<double> values = values_of(item.x);
  const auto heads = static_cast<std::size_t>(item.x.size(1));
  const auto run = static_cast<std::size_t>(item.x.size(2) * item.x.size(3));
  const bool is_largest = item.figure == HeadFigure::largest;
  std::vector<double> y(heads, is_largest ? -INFINITY : 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    double& to = y[i / run % heads];
    if (is_largest) {
      to = values[i] > to ? values[i] : to;
    } else {
      to += item.figure == HeadFigure::norm ? values[i] * values[i] : values[i];
    }
  }
  for (double& to : y) {
    if (item.figure == HeadFigure::norm) to = std::sqrt(to);
    if (item.figure == HeadFigure::mean && !values.empty()) {
      to *= static_cast<double>(heads) / static_cast<double>(values.size());
    }
  }
  return y;
}

// Every layout of one shape: a tensor of its own, heads inside, a part of q, k and v side by side,
// heads inside whose rows begin anywhere, a last axis with gaps.
std::vector<Tensor> layouts(const Shape& shape, DType dtype) {
  Generator random(7);
  const std::int64_t b = shape[0], h = shape[1], s = shape[2], d = shape[3];
  const auto draw = [&](const Shape& of) { return random.normal(of, 0.5f, 2, dtype); };
  const auto heads_first = [](const Tensor& x) { return permute(x, {0, 2, 1, 3}); };
  return {draw(shape), heads_first(draw({b, s, h, d})),
          heads_first(slice(draw({b, s, 3 * h, d}), 2, h, 2 * h)),
          heads_first(slice(draw({b, s, h, d + 3}), 3, 1, d + 1)),
          permute(draw({d, b, s, h}), {1, 3, 2, 0})};
}

void check_figures(const std::vector<HeadFigures>& items) {
  std::vector<double> all;
  double largest = 1;
  for (const HeadFigures& item : items) {
    for (const double x : expected(item)) all.push_back(x);
  }
  for (const double x : all) largest = std::isfinite(x) ? std::max(largest, std::fabs(x)) : largest;
  for_each_target([&] {
    std::vector<HeadFigures> there = items;
    for (HeadFigures& item : there) item.x = on_device(item.x, test_device());
    const std::vector<double> got = values_of(head_figures(there));
    ASSERT_EQ(got.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] == got[i]) continue;
      EXPECT_NEAR(got[i], all[i], 1e-6 * largest) << "result " << i;
    }
  });
}

// One element, odd sizes, whole packs, several chunks of rows, rows longer than a warp's reach.
TEST(HeadFigures, InEveryLayoutAndDtype) {
  for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{3, 2, 16, 64},
                             Shape{5, 2, 300, 64}, Shape{2, 1, 9, 600}, Shape{700, 3, 1, 1}}) {
    for (const DType dtype : kFloats) {
      for (const HeadFigure figure : kFigures) {
        const std::vector<Tensor> all = layouts(shape, dtype);
        for (std::size_t i = 0; i < all.size(); ++i) {
          SCOPED_TRACE(to_string(shape) + " " + to_string(dtype) + " layout " + std::to_string(i) +
                       " figure " + std::to_string(static_cast<int>(figure)));
          check_figures({{all[i], figure}});
        }
      }
    }
  }
}

// Many at once, of different shapes, dtypes and figures, some without elements.
TEST(HeadFigures, OfManyTensorsTogether) {
  Generator random(3);
  std::vector<HeadFigures> items{{Tensor::empty({0, 2, 3, 4}), HeadFigure::largest}};
  for (int i = 0; i < 40; ++i) {
    const Shape shape{i % 7 == 3 ? 0 : 1 + i % 5, 1 + i % 4, 1 + 60 * (i % 3), i % 2 == 0 ? 64 : 1};
    items.push_back({random.normal(shape, 0, 1, kFloats[i % 3]), kFigures[i % 3 == 0 ? 2 : i % 2]});
  }
  items.push_back({Tensor::empty({2, 0, 3, 4}), HeadFigure::mean});
  items.push_back({Tensor::empty({2, 3, 0, 4}), HeadFigure::norm});
  check_figures(items);
  EXPECT_FALSE(head_figures({}).defined());
}

// NaN is felt by its own head and by no other, wherever it stands.
TEST(HeadFigures, NanStaysWithItsHead) {
  for (const HeadFigure figure : kFigures) {
    for (const std::int64_t at : {0, 17, 499}) {
      std::vector<float> values(2 * 500, 1.0f);
      values[static_cast<std::size_t>(2 * at + 1)] = std::numeric_limits<float>::quiet_NaN();
      const Tensor x = Tensor::from(values, {500, 2, 1, 1});
      for_each_target([&] {
        const std::vector<double> got =
            values_of(head_figures({{on_device(x, test_device()), figure}}));
        EXPECT_NEAR(got[0], figure == HeadFigure::norm ? std::sqrt(500.0) : 1, 1e-5);
        EXPECT_TRUE(std::isnan(got[1])) << static_cast<int>(figure) << " at " << at;
      });
    }
  }
}

// What is summed in f32 is little: many small squares beside a large one are not lost.
TEST(HeadFigures, KeepSmallTerms) {
  std::vector<float> values(std::size_t{1} << 20, 1e-3f);
  values[12345] = 30;
  const Tensor x = Tensor::from(values, {1024, 1, 16, 64});
  for_each_target([&] {
    const double got =
        values_of(head_figures({{on_device(x, test_device()), HeadFigure::norm}}))[0];
    EXPECT_NEAR(got, std::sqrt(900 + 1.048575), 2e-5);
  });
}

TEST(HeadFigures, SayWhatIsWrong) {
  EXPECT_ERROR("head_figures: x is undefined", head_figures({{Tensor(), HeadFigure::mean}}));
  EXPECT_ERROR("[B, H, S, D]", head_figures({{Tensor::zeros({2, 3}), HeadFigure::mean}}));
}

}  // namespace
}  // namespace qkv::test

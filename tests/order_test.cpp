// Sorting numbers among which are NaN.
#include "core/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace qkv {
namespace {

TEST(Order, NanIsLastWhicheverWayNumbersAreSorted) {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) {
    values.push_back(i % 3 == 0 ? std::nanf("") : static_cast<float>(i * 7919 % 1000));
  }
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(-std::numeric_limits<float>::infinity());
  const auto is_nan = [](float value) { return std::isnan(value); };
  const auto check_sorted = [&](bool (*before)(float, float)) {
    std::sort(values.begin(), values.end(), before);
    const auto end = std::find_if(values.begin(), values.end(), is_nan);
    EXPECT_EQ(values.end() - end, 334);
    EXPECT_TRUE(std::all_of(end, values.end(), is_nan));
    EXPECT_TRUE(std::is_sorted(values.begin(), end, before));
  };
  check_sorted(is_larger<float>);
  EXPECT_EQ(values.front(), std::numeric_limits<float>::infinity());
  check_sorted(is_smaller<float>);
  EXPECT_EQ(values.front(), -std::numeric_limits<float>::infinity());
  EXPECT_FALSE(is_larger(1.0, 1.0));
  EXPECT_FALSE(is_larger(std::nan(""), std::nan("")));
}

}  // namespace
}  // namespace qkv

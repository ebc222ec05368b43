// gelu and silu where they are tiny; the table of operators has them where they are not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "qkv/cpu.h"
#include "qkv/ops.h"
#include "support/targets.h"

namespace qkv {
namespace {

using test::on_every_target;

using Function = double (*)(double);

double exact_gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double exact_silu(double x) { return x / (1 + std::exp(-x)); }

// The largest relative error among results that are not about to underflow.
double worst_error(Activation f, Function exact, double from, double to) {
  std::vector<float> x;
  for (double at = from; at < to; at += (to - from) / 20011) x.push_back(static_cast<float>(at));
  for (float tiny = 1e-3f; tiny > 1e-30f; tiny *= 0.37f) x.insert(x.end(), {tiny, -tiny});
  const auto count = static_cast<std::int64_t>(x.size());
  const std::vector<float> y = activate(Tensor::from(x, {count}), f).to_vector<float>();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = exact(x[i]);
    if (std::abs(expected) > 1e-36) {
      worst = std::max(worst, std::abs(y[i] - expected) / std::abs(expected));
    }
  }
  return worst;
}

TEST(Activations, AreExactWhereTheyAreTiny) {
  on_every_target([] {
  // Without a fused multiply-add the exponent is rounded before its whole number is taken off.
#if defined(__aarch64__)
    const bool fused = true;
#else
    const bool fused = cpu_target() != "sse4" && cpu_target() != "baseline";
#endif
    const double most = fused ? 1e-6 : 2e-5;
    EXPECT_LT(worst_error(Activation::gelu, exact_gelu, -13, 13), most);
    EXPECT_LT(worst_error(Activation::silu, exact_silu, -86, 86), most);
  });
}

}  // namespace
}  // namespace qkv

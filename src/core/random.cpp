#include "qkv/random.h"

#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/dispatch.h"
#include "core/philox.h"
#include "core/threads.h"

namespace qkv {
namespace {

constexpr std::int64_t kBlock = 4096;  // values per task; a multiple of 4

// Calls draw(words) for each counter and stores the four values it makes.
template <class Draw>
Tensor fill_by_four(const Shape& shape, DType dtype, std::uint64_t seed, std::uint64_t first,
                    Draw draw) {
  Tensor x = Tensor::empty(shape, {dtype});
  const std::int64_t count = x.numel();
  dispatch_float(dtype, [&]<class T>() {
    T* data = x.data<T>();
    parallel_for((count + kBlock - 1) / kBlock, [&](std::int64_t block) {
      const std::int64_t end = std::min(count, (block + 1) * kBlock);
      for (std::int64_t i = block * kBlock; i < end; i += 4) {
        const std::uint64_t counter = first + static_cast<std::uint64_t>(i / 4);
        const auto words = philox_words(
            {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
            seed);
        const std::array<float, 4> values = draw(words);
        for (std::int64_t j = i; j < std::min(end, i + 4); ++j) data[j] = T(values[j - i]);
      }
    });
  });
  return x;
}

// In (0, 1): the half step keeps 0 out, so that its logarithm exists.
double unit(std::uint32_t word) { return (word + 0.5) * 0x1p-32; }

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
  return philox_words(counter, key);
}

Tensor Generator::normal(const Shape& shape, float mean, float deviation, DType dtype) {
  const std::uint64_t first = drawn_;
  drawn_ += static_cast<std::uint64_t>(shape.numel() + 3) / 4;
  return fill_by_four(shape, dtype, seed_, first, [=](const std::array<std::uint32_t, 4>& w) {
    std::array<float, 4> values{};
    for (int pair = 0; pair < 4; pair += 2) {  // Box-Muller
      const double radius = std::sqrt(-2 * std::log(unit(w[pair])));
      const double angle = 2 * std::numbers::pi * unit(w[pair + 1]);
      values[pair] = static_cast<float>(mean + deviation * radius * std::cos(angle));
      values[pair + 1] = static_cast<float>(mean + deviation * radius * std::sin(angle));
    }
    return values;
  });
}

Tensor Generator::uniform(const Shape& shape, float low, float high, DType dtype) {
  const std::uint64_t first = drawn_;
  drawn_ += static_cast<std::uint64_t>(shape.numel() + 3) / 4;
  return fill_by_four(shape, dtype, seed_, first, [=](const std::array<std::uint32_t, 4>& w) {
    std::array<float, 4> values{};
    for (int i = 0; i < 4; ++i) {
      values[i] = static_cast<float>(low + (double{high} - low) * unit(w[i]));
    }
    return values;
  });
}

}  // namespace qkv

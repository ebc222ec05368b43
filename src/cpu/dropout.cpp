// Dropout of elements: word i % 4 of the counter (i / 4, 0, 1) decides element i.
#include <algorithm>
#include <array>

#include "core/dispatch.h"
#include "core/philox.h"
#include "cpu/kernels.h"
#include "cpu/walk.h"

namespace qkv::cpu {

void dropout(const Tensor& x, double p, std::uint64_t seed, Tensor& y) {
  // A p that f32 cannot tell from 1 would overflow the word.
  const std::uint32_t threshold =
      dropout_threshold(std::min(static_cast<float>(p), 0x1.fffffep-1f));
  const auto factor = static_cast<float>(1 / (1 - p));
  dispatch_float(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_each_span(x.numel(), [&](std::int64_t begin, std::int64_t end) {
      std::array<std::uint32_t, 4> words{};
      for (std::int64_t i = begin; i < end; ++i) {
        if (i % 4 == 0) {  // pieces begin at multiples of 4
          const auto block = static_cast<std::uint64_t>(i / 4);
          words = philox_words(
              {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 1},
              seed);
        }
        const bool kept = words[i % 4] >= threshold;
        to[i] = T(kept ? static_cast<float>(from[i]) * factor : 0.0f);
      }
    });
  });
}

}  // namespace qkv::cpu

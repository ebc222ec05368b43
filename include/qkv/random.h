// Counter-based random numbers (Philox4x32-10): the same seed gives the same numbers on every
// device, at any number of threads.
#pragma once

#include <array>
#include <cstdint>

#include "qkv/tensor.h"

namespace qkv {

// Four 32-bit words for a 128-bit counter and a 64-bit key (Salmon et al. 2011).
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::uint64_t key);

// A stream of draws, for one thread at a time: each call takes the next range of counters, so two
// tensors drawn one after the other differ and the sequence is reproducible from the seed.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) : seed_(seed) {}

  Tensor normal(const Shape& shape, float mean = 0, float deviation = 1, DType dtype = DType::f32);
  Tensor uniform(const Shape& shape, float low = 0, float high = 1, DType dtype = DType::f32);

 private:
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;  // counters used so far
};

}  // namespace qkv

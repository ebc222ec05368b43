// One matrix product as the CPU computes it; matmul and linear (matmul.cpp) are made of it.
#pragma once

#include <cstdint>

#include "core/op_problems.h"
#include "cpu/gemm_engine.h"
#include "cpu/scratch.h"

namespace qkv::cpu {

// A weight in the panels of an engine: that of the target in use when it was packed.
struct CpuPacked final : Packed {
  GemmEngine engine{};
  DType stored = DType::f32;  // 16-bit weights stay 16 bits wide
  std::int64_t panel_stride = 0;
  Tensor bytes;

  const std::byte* data() const { return static_cast<const std::byte*>(bytes.raw()); }
};

// y [m, n] = activation(A B + bias), B in memory or packed.
struct Product {
  GemmEngine engine;
  Source a;  // [m, k]
  std::int64_t m, n, k;
  bool round;                         // A to bf16
  const CpuPacked* packed = nullptr;  // else b
  Source b{};                         // [k, n]
  Rows bias{};
  Activation activation = Activation::none;
  Rows y;
};

void multiply(const Product& product);

}  // namespace qkv::cpu

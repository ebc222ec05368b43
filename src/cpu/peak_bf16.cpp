// The instructions that multiply bf16, one loop each. Highway 1.0.3 has none of them, so those of
// x86 are intrinsics, compiled for their instruction set by an attribute; on Arm the engine
// multiplies. A loop runs only where cpu_target() says that the machine has its instruction.
#include <string_view>
#include <vector>

#include "cpu/attention_engine.h"
#include "cpu/peak.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qkv::cpu {
namespace {

#if defined(__x86_64__)

constexpr int kSteps = 4;  // per round, so that counting the rounds costs nothing

// Six tiles of 16 rows of 64 bytes. In read-only memory: g++ 12 declares that _tile_loadconfig
// reads 8 bytes, and leaves out stores to the rest of a local one.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTiles;

// Tiles 0 to 3 are sums (16 x 16 f32), 4 and 5 factors of 16 rows of 32 bf16, all zero: AMX takes
// the same time whatever it multiplies. Four sums cover the latency (52 cycles, one starts every
// 16).
constexpr double kAmxFlops = 2.0 * 16 * 16 * 32 * 4 * kSteps;

__attribute__((target("amx-tile,amx-bf16"))) void amx_work(std::int64_t rounds) {
  _tile_loadconfig(&kTiles);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step) {
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(1, 4, 5);
      _tile_dpbf16ps(2, 4, 5);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_release();
}

// Each lane adds two products. Six cycles of latency, at most two started in each.
constexpr int kAvx512Sums = 16;
constexpr double kAvx512Flops = 2.0 * 2 * 16 * kAvx512Sums * kSteps;

thread_local volatile float sink;  // all threads write

__attribute__((target("avx512f,avx512bf16"))) void avx512_work(std::int64_t rounds) {
  __m512 sums[kAvx512Sums];
  for (int i = 0; i < kAvx512Sums; ++i) sums[i] = _mm512_set1_ps(sink + static_cast<float>(i));
  const __m512 ones = _mm512_set1_ps(sink + 1);
  const __m512bh a = _mm512_cvtne2ps_pbh(ones, ones);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
      for (int i = 0; i < kAvx512Sums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], a, a);
    }
  }
  for (int i = 1; i < kAvx512Sums; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  sink = _mm512_cvtss_f32(sums[0]) * 0.0f;
}

#elif defined(__aarch64__)

// BFMMLA, in the block of a product, whose operands stay in the caches (peak_f32.cpp says why).
constexpr std::int64_t kNeonRows = 48, kNeonColumns = 320, kNeonDepth = 512;
constexpr double kNeonFlops = 2.0 * kNeonRows * kNeonColumns * kNeonDepth;

void neon_work(std::int64_t rounds) {
  const AttentionEngine& engine = *neon_bf16_engine();
  std::vector<bf16> left(kNeonRows * kNeonDepth, bf16(0.75f));
  std::vector<bf16> right(kNeonColumns * kNeonDepth, bf16(0.5f));
  std::vector<float> sums(kNeonRows * kNeonColumns);
  const PackedOperand packed{right.data(), kNeonColumns, kNeonDepth};
  for (std::int64_t round = 0; round < rounds; ++round) {
    engine.multiply({left.data(), kNeonDepth}, packed, sums.data(), kNeonColumns,
                    {kNeonRows, kNeonColumns, kNeonDepth}, false);
  }
}

#endif

}  // namespace

PeakLoop peak_loop_bf16([[maybe_unused]] const char* target) {
#if defined(__x86_64__)
  if (std::string_view(target) == "amx") return {amx_work, kAmxFlops};
  if (std::string_view(target) == "avx512_bf16") return {avx512_work, kAvx512Flops};
#elif defined(__aarch64__)
  if (std::string_view(target) == "neon_bf16") return {neon_work, kNeonFlops};
#endif
  return {};
}

}  // namespace qkv::cpu

// The engines of the matrix product, one source for every SIMD target.
#include "cpu/gemm_engine.h"

#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm_engine.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// after foreach_target
#include "cpu/gemm_finish-inl.h"
#include "cpu/gemm_kernel-inl.h"
#include "cpu/gemm_pack-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace qkv::cpu::HWY_NAMESPACE {

GemmEngine engine_f32() {
  return {.operand = DType::f32,
          .panel = kPanel,
          .row_multiple = kLeftTogether,
          .depth_multiple = 1,
          .depth_block = kDepthBlock,
          .left_stride = kLeftStride,
          .most_rows = 384,
          .most_columns = 320,
          .stream_columns = kMostStreams * kPanel,
          .stream_rows = kLongStreamRows,
          .narrow_rows = kNarrowRows,
          .thread_tasks = HWY_TARGET == HWY_NEON ? 2 : 4,
          .pack_left = pack_left,
          .pack_right = pack_right,
          .widen = widen,
          .multiply = multiply_f32,
          .finish = finish_rows,
          .native = nullptr,
          .native_rows = 0,
          .native_columns = 0};
}

}  // namespace qkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qkv::cpu {

HWY_EXPORT(engine_f32);

GemmEngine gemm_engine(DType dtype) {
  const AttentionEngine* native = native_bf16_engine();  // also settles the target
  GemmEngine engine = HWY_DYNAMIC_DISPATCH(engine_f32)();
  if (dtype != DType::bf16 || native == nullptr) return engine;
  engine.operand = DType::bf16;
  engine.panel = native->column_multiple;
  engine.row_multiple = native->row_multiple;
  engine.depth_multiple = native->depth_multiple;
  engine.depth_block = 512;
  engine.left_stride = engine.depth_block + 32;
  engine.pack_right = pack_right_native;
  engine.widen = nullptr;
  engine.multiply = multiply_native;
  engine.native = native;
  if (native == amx_engine()) {  // the eight tile registers: 32 x 32 sums
    engine.native_rows = engine.native_columns = 32;
    engine.stream_columns = 64;
  } else if (native == avx512_bf16_engine()) {  // 8 x 48 sums
    engine.native_rows = 64;
    engine.native_columns = engine.stream_columns = 48;
  } else {                     // BFMMLA rearranges A on the way: once for many columns
    engine.depth_block = 768;  // 18 KiB of A and 12 of a panel: half of a first-level cache
    engine.left_stride = engine.depth_block + 32;
    engine.native_rows = 96;
    engine.native_columns = 192;
    engine.stream_columns = 32;  // four panels
  }
  return engine;
}

}  // namespace qkv::cpu
#endif

#include "cpu/targets.h"

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "core/check.h"
#include "core/process_mutex.h"
#include "hwy/highway.h"
#include "hwy/targets.h"
#include "qkv/cpu.h"

namespace qkv {
namespace {

const cpu::AttentionEngine* no_engine() { return nullptr; }
const cpu::Int8Engine* no_int8() { return nullptr; }
const cpu::DecodeEngine* no_decode() { return nullptr; }

struct CpuTarget {
  const char* name;
  std::int64_t highway;
  const cpu::AttentionEngine* (*bf16)();  // null result: the machine cannot run it
  bool needs_bf16;
  const cpu::Int8Engine* (*int8)();                       // null result: the portable one
  const cpu::DecodeEngine* (*bf16_decode)() = no_decode;  // null results: computed in f32
  const cpu::DecodeEngine* (*f16_decode)() = no_decode;
};

// Best first.
constexpr CpuTarget kTargets[] = {
#if HWY_ARCH_X86
    {"amx", HWY_AVX3, cpu::amx_engine, true, cpu::amx_int8_engine},
    {"avx512_bf16", HWY_AVX3, cpu::avx512_bf16_engine, true, cpu::avx512_vnni_engine},
    {"avx512", HWY_AVX3, no_engine, false, cpu::avx512_vnni_engine},
    {"avx2", HWY_AVX2, no_engine, false, no_int8},
    {"sse4", HWY_SSE4, no_engine, false, no_int8},
#elif HWY_ARCH_ARM
    {"neon_bf16", HWY_NEON, cpu::neon_bf16_engine, true, cpu::neon_i8mm_engine,
     cpu::neon_bf16_decode, cpu::neon_f16_decode},
    {"neon", HWY_NEON, no_engine, false, cpu::neon_dot_engine, no_decode, cpu::neon_f16_decode},
#endif
    // What every machine of the architecture has: SSE2, NEON.
    {"baseline", HWY_STATIC_TARGET, no_engine, false, no_int8},
};

std::vector<const CpuTarget*> available() {
  static const std::vector<const CpuTarget*> list = [] {
    std::vector<const CpuTarget*> found;
    const std::int64_t supported = hwy::SupportedTargets();
    for (const CpuTarget& target : kTargets) {
      const bool runs = (target.highway & HWY_TARGETS) != 0 &&
                        ((target.highway & supported) != 0 || target.highway == HWY_STATIC_TARGET);
      if (runs && (!target.needs_bf16 || target.bf16() != nullptr)) found.push_back(&target);
    }
    return found;
  }();
  return list;
}

std::atomic<const CpuTarget*>& current() {
  static std::atomic<const CpuTarget*> target{nullptr};
  return target;
}

// `asker` is who wants it, for the message.
const CpuTarget& select(const char* asker, const std::string& name) {
  std::string names;
  for (const CpuTarget* target : available()) {
    if (name == target->name) {
      static ProcessMutex one_at_a_time;  // two threads may make their first call at once
      const std::scoped_lock lock(one_at_a_time);
      hwy::SetSupportedTargetsForTest(target->highway);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      current().store(target);
      return *target;
    }
    names += (names.empty() ? "" : ", ") + std::string(target->name);
  }
  fail("{}: CPU target '{}' is not available; this machine and build have {}", asker, name, names);
}

const CpuTarget& in_use() {
  // Decided once, before the first kernel; a bad QKV_CPU_TARGET is an Error each time.
  if (const CpuTarget* target = current().load()) return *target;
  const char* wanted = std::getenv("QKV_CPU_TARGET");
  return select("QKV_CPU_TARGET",
                wanted != nullptr && *wanted != '\0' ? wanted : available().front()->name);
}

}  // namespace

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const CpuTarget* target : available()) names.emplace_back(target->name);
  return names;
}

std::string cpu_target() { return in_use().name; }

void set_cpu_target(const std::string& name) { select("set_cpu_target", name); }

namespace cpu {

const AttentionEngine* native_bf16_engine() { return in_use().bf16(); }

const DecodeEngine* decode_engine(DType dtype) {
  if (dtype == DType::bf16) return in_use().bf16_decode();
  return dtype == DType::f16 ? in_use().f16_decode() : nullptr;
}

const Int8Engine& int8_engine() {
  const Int8Engine* engine = in_use().int8();
  return engine != nullptr ? *engine : portable_int8_engine();
}

void settle_target() { in_use(); }

}  // namespace cpu
}  // namespace qkv
